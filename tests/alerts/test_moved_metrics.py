"""Each metric that a rule names is moved by a test: an alert on one that rests never fires."""

import re
from collections.abc import Iterable, Mapping

from docs.build.alert_rules import ROOT, RULES, rule_selectors
from docs.build.metrics_table import metrics_modules, role_of
from tests.alerts.moved_metrics import ALWAYS_LABELS, MOVED_BY
from tests.support.source_mentions import Mentions, find_mentions

# The names that a test of every metric leaves out, because they need no movement there.
_LEFT_OUT = ("PASSING", "RESTING")
_LISTED_IN = {name: module.__name__ for module in metrics_modules() for name in module.HELP}


def wanted_values(selector: str) -> list[list[str]]:
    """Return, by label, the values of which a selector takes one."""
    return [values.split("|") for values in re.findall(r'\w=~?"([^"]*)"', selector)]


def has_moved(selector: str, test: Mentions) -> bool:
    """Return whether a test names the metric, and a value of each label that the selector has.

    A test that asks for all names of the metric's own list names it too.
    """
    name = selector.partition("{")[0]
    short = name.removeprefix(f"sessionary_{role_of(name)}_")
    is_named = test.name_word(name, short) or (_LISTED_IN[name], "HELP") in test.imports
    return is_named and all(test.name_word(*values) for values in wanted_values(selector))


def find_unmoved(selectors: Iterable[str], moved_by: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the list of the tests that move these selectors."""
    found = []
    for selector in sorted(selectors):
        path, _, test = moved_by.get(selector, "").partition("::")
        if not path:
            found.append(f"{selector}: no test is named that moves it")
            continue
        file = ROOT / path
        source = file.read_text("utf-8") if file.is_file() else ""
        mentions = find_mentions(source, test, _LEFT_OUT)
        if mentions is None:
            found.append(f"{selector}: {path} has no {test}")
        elif not has_moved(selector, mentions):
            found.append(f"{selector}: {path}::{test} does not name it")
    return found


def test_each_metric_of_a_rule_is_moved_by_a_test() -> None:
    selectors = rule_selectors(RULES.read_text("utf-8"), ALWAYS_LABELS)
    assert find_unmoved(selectors, MOVED_BY) == []
    assert MOVED_BY.keys() == selectors
    assert len(selectors) > 40


def test_a_rule_whose_metric_no_test_moves_is_found() -> None:
    rules = """
      - alert: New
        expr: |
          max(sessionary_sink_blocked{group="g", reason="new"}) > 0
          or sum(rate(sessionary_processor_timer_wall_lateness_seconds_bucket[5m])) > 0
        labels:
          severity: sessionary_is_no_metric_here
"""
    new, late = 'sessionary_sink_blocked{reason="new"}', "sessionary_processor_timer_wall_lateness_seconds"
    assert rule_selectors(rules, ALWAYS_LABELS) == {new, late}
    assert find_unmoved([new], MOVED_BY) == [f"{new}: no test is named that moves it"]
    path, _, test = MOVED_BY["sessionary_sink_blocked"].partition("::")
    for wrong in (f"{path}::test_gone", "tests/gone.py::test_gone"):
        said = f"{new}: {wrong.replace('::', ' has no ')}"
        assert find_unmoved([new], {new: wrong}) == [said]
    assert find_unmoved([new], {new: f"{path}::{test}"}) == [f"{new}: {path}::{test} does not name it"]


def test_a_metric_that_a_test_leaves_out_or_only_its_file_names_is_not_moved_by_it() -> None:
    source = '''
from sessionary.sinks.metrics import HELP
PASSING = {"held_records"}

def helper():
    return "tool_calls"

def test_one(rig):
    """It is about stored_bytes."""
    assert helper() and PASSING

def test_other():
    assert "timers_due{" in HELP
'''
    one, other = (find_mentions(source, name, _LEFT_OUT) for name in ("test_one", "test_other"))
    assert one is not None
    assert other is not None
    processor = ("held_records", "tool_calls", "stored_bytes", "timers_due")
    for mentions, named in ((one, "tool_calls"), (other, "timers_due")):
        moved = [name for name in processor if has_moved(f"sessionary_processor_{name}", mentions)]
        assert moved == [named]
    assert [has_moved("sessionary_sink_blocked", mentions) for mentions in (one, other)] == [False, True]
    assert not has_moved('sessionary_sink_blocked{reason="tables"}', other)
