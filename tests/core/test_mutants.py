"""The mutants: faults are made as named, and trials kill only those that change behaviour."""

import ast
import json
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

from tests.core.stream_processors.core.session import test_decide
from tests.mutants.__main__ import EQUIVALENT, MODULES, copy_modules, module_text, read_equivalents
from tests.mutants.cases import case_name, cases
from tests.mutants.mutations import mutants_of
from tests.mutants.report import by_module, difference, report, tally, write_json, wrongly_listed
from tests.mutants.trials import Result

TOY = '''
def bounded(value: int, low: int) -> int:
    """A lower bound, once needlessly strict: if both are equal either may be returned."""
    if value < low:
        return low
    return value
'''
# In a separate process: trials fork, and pytest has threads if it runs in parallel.
SCRIPT = """
import json, sys
from pathlib import Path
from tests.mutants.trials import run_trials
from tests.mutants.mutations import mutants_of

def suite(hint):
    from toy import bounded
    found = [bounded(value, 3) for value in (1, 2, 3, 4, 5)]
    return None if found == [3, 3, 3, 4, 5] else f"bounded gives {found}"

def install(folder):
    sys.path.insert(0, str(folder))

mutants = mutants_of("toy", sys.stdin.read())
results = run_trials(mutants, install, suite, workers=2)
print(json.dumps({f"{r.mutant.before} -> {r.mutant.after}": r.killed_by for r in results}))
"""


def test_a_mutant_that_changes_behaviour_is_killed_and_an_equivalent_one_survives() -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=TOY, capture_output=True, text=True, cwd=root, check=True, timeout=300
    )
    fates = json.loads(ended.stdout)
    assert fates.pop("value < low -> value <= low") is None
    assert fates.pop("value < low -> value >= low") == "by bounded gives [1, 2, 3, 3, 3]"
    assert fates.pop("return low -> pass") == "by bounded gives [1, 2, 3, 4, 5]"
    assert len(fates) >= 2
    assert None not in fates.values()


def test_no_compiled_module_is_copied_beside_the_mutants(tmp_path: Path) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    (tree / "core" / "__pycache__").mkdir(parents=True)
    for suffix in (".py", *EXTENSION_SUFFIXES, ".pyd"):
        (tree / "core" / f"clock{suffix}").touch()
    copy_modules(tree, copy)
    assert [path.relative_to(copy) for path in copy.rglob("*") if path.is_file()] == [Path("core/clock.py")]
    assert list(copy.rglob("__pycache__")) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x = a + b", {"a - b", "a", "b"}),
        ("x = min(a, 1)", {"max(a, 1)", "2", "0"}),
        ("x = not a", {"a"}),
        ("x = a and b", {"a or b", "a", "b"}),
        ("x = state.last_event_at", {"state.last_work_at"}),
        ("x = row._replace(a=b)", {"row._replace()"}),
        ("x = Decision(facts, rejection=reason)", {"Decision(facts)"}),
        ("x = [n for n in names if n]", {" for n in names"}),
        ("x = 'a_code'", {"'mutated'"}),
        ("x = 'a sentence for people'", set()),
        ("x = f'{a + b}'", set()),
        ("assert a == b", set()),
        ("if TYPE_CHECKING:\n    x = 1", set()),
        ("RowT = TypeVar('RowT')", set()),
        ("PHASES = {'Idle': frozenset({('a', 'b')})}", {"frozenset({('a', 'b')}) ^ {('b', 'a')}"}),
    ],
)
def test_each_fault_is_made(text: str, wanted: set[str]) -> None:
    assert wanted <= {mutant.after for mutant in mutants_of("m", text)}
    if not wanted:
        assert mutants_of("m", text) == []


def test_a_row_of_the_table_is_dropped_and_changed() -> None:
    row = "Transition('T02', 'Idle', 'session_started', 'Active', 'processing', 'client')"
    after = {mutant.after for mutant in mutants_of("table", f"TRANSITIONS = ({row}, {row})")}
    assert f"({row},)" in after
    assert any("target='Paused', phase='processing'" in changed for changed in after)
    assert any("reasons=('closed',)" in changed for changed in after)


ROWS = """TRANSITIONS = (
    Transition("T1", "Idle", "x", "Active", None, "client", guard=_start, effect=_begin, clocks=(clocks.A, clocks.B)),
    Transition("T2", "Idle", "y", "Active", None, "client", ("closed",), guard=_end, effect=_stop,
        clocks=(clocks.C,), cleanup=CleanupPlan(_PLAIN, {"closed": _OTHER}, once=True)),
)"""


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("guard", {"T1": {None, "_end"}, "T2": {None, "_start"}}),
        ("effect", {"T1": {None, "_stop"}, "T2": {None, "_begin"}}),
        (
            "clocks",
            {
                "T1": {
                    "(clocks.B,)",
                    "(clocks.A,)",
                    "(clocks.B, clocks.B)",
                    "(clocks.A, clocks.C)",
                    "(clocks.B, clocks.A)",
                },
                "T2": {"()", "(clocks.A,)"},
            },
        ),
        (
            "cleanup",
            {
                "T2": {
                    None,
                    "CleanupPlan(_OTHER, {'closed': _OTHER}, once=True)",
                    "CleanupPlan(_PLAIN, {}, once=True)",
                    "CleanupPlan(_PLAIN, {'closed': _PLAIN}, once=True)",
                    "CleanupPlan(_PLAIN, {'closed': _OTHER})",
                }
            },
        ),
    ],
)
def test_a_rows_guard_effect_clocks_and_clean_up_are_dropped_and_exchanged(
    field: str, wanted: dict[str, set[str | None]]
) -> None:
    found: dict[str, set[str | None]] = {}
    originals = {}
    for mutant in mutants_of("table", ROWS):
        if mutant.after.startswith("Transition("):
            before, after = fields_of(mutant.before), fields_of(mutant.after)
            originals[after["id"]] = before
            if after.get(field) != before.get(field):
                assert {n: v for n, v in after.items() if n != field} == {n: v for n, v in before.items() if n != field}
                found.setdefault(ast.literal_eval(after["id"]), set()).add(after.get(field))
    assert len(originals) == 2
    assert found == wanted


def fields_of(row: str) -> dict[str, str]:
    """Return a row's arguments by name."""
    call = ast.parse(row, mode="eval").body
    assert isinstance(call, ast.Call)
    names = ("id", "source", "event_type", "target", "phase", "by", "reasons")
    given = [*zip(names, call.args, strict=False), *((f"{keyword.arg}", keyword.value) for keyword in call.keywords)]
    return {name: ast.unparse(value) for name, value in given}


def test_a_value_of_a_table_is_dropped_and_exchanged() -> None:
    after = {mutant.after for mutant in mutants_of("table", "_EFFECTS = {A: _a, B: _b}")}
    assert after == {"{B: _b}", "{A: _a}", "{A: _b, B: _b}", "{A: _a, B: _a}"}


def test_ids_are_unique_and_do_not_depend_on_lines() -> None:
    assert sum(len(mutants_of(name, module_text(name))) for name in MODULES) > 2_000
    for name in MODULES:
        text = module_text(name)
        found = mutants_of(name, text)
        assert len({mutant.id for mutant in found}) == len(found) > 0
        assert [mutant.id for mutant in mutants_of(name, f"\n\n{text}")] == [mutant.id for mutant in found]


def test_every_mutant_can_be_compiled_and_differs() -> None:
    text = module_text("core.clock")
    for n in range(len(mutants_of("core.clock", text))):
        mutant = mutants_of("core.clock", text)[n]
        compile(mutant.source(), "timers.py", "exec")


def test_listed_equivalents_exist_and_have_a_reason() -> None:
    known = {mutant.id for name in MODULES for mutant in mutants_of(name, module_text(name))}
    assert read_equivalents().keys() - known == set(), f"no longer in the code: remove them from {EQUIVALENT.name}"
    assert all(len(reason) > 10 for reason in read_equivalents().values())


@pytest.mark.parametrize(("name", "value"), [("a", 1), ("b", 2)])
@pytest.mark.parametrize("again", [True])
def parametrized(name: str, value: int, *, again: bool) -> None:
    assert (name, value, again) == ("a", 1, True)


def test_cases_are_called_as_pytest_would() -> None:
    module = ModuleType("some_tests")
    vars(module).update(test_it=parametrized, helper=parametrized, test_number=1)
    first, second = cases(module)
    first()
    assert case_name(first) == "parametrized(True, 'a', 1)"
    with pytest.raises(AssertionError):
        second()
    assert len(list(cases(test_decide))) > 8 * 40


def results() -> list[Result]:
    """Return results: two killed, one survivor, one listed, one listed but killed."""
    mutants = [*mutants_of("timers", "x = a + b"), *mutants_of("clock", "x = a and b")]
    assert len(mutants) >= 5
    return [Result(mutant, "by a test" if n in (0, 1, 4) else None, 0.5) for n, mutant in enumerate(mutants[:5])]


def test_the_report_counts_by_module_and_shows_survivors() -> None:
    found = results()
    known = {found[2].mutant.id: "for a reason", found[4].mutant.id: "for none"}
    assert tally(found, known) == (5, 3, 1, 1)
    assert [(module, *row) for module, row in by_module(found, known).items()] == [
        ("timers", 3, 2, 1, 0),
        ("clock", 2, 1, 0, 1),
    ]
    assert tally(found[2:3], known).score == 100
    assert wrongly_listed(found, known) == [found[4].mutant.id]
    lines = [line.split() for line in report(found, known).splitlines()]
    assert ["survived:", found[3].mutant.id] in lines
    assert ["listed", "as", "equivalent,", "but", "killed:", found[4].mutant.id] in lines
    assert lines[-4] == ["module", "mutants", "killed", "equivalent", "survived", "score"]
    assert lines[-1] == ["all", "5", "3", "1", "1", "75.0", "%"]


def test_a_difference_is_the_lines_that_differ() -> None:
    assert difference("a < b", "a <= b") == ["- a < b", "+ a <= b"]
    assert difference("one\ntwo\nthree", "one\nthree") == ["- two"]


def test_results_are_written_as_json(tmp_path: Path) -> None:
    found, path = results(), tmp_path / "build" / "mutants.json"
    write_json(found, {found[2].mutant.id: "for a reason"}, path)
    kept = json.loads(path.read_text("utf-8"))
    assert kept["modules"]["all"] == {"mutants": 5, "killed": 3, "equivalent": 1, "survived": 1, "score": 75.0}
    assert [line["outcome"] for line in kept["mutants"]] == ["killed", "killed", "equivalent", "survived", "killed"]
    assert kept["mutants"][2]["why_equivalent"] == "for a reason"
    assert kept["mutants"][0]["killed_by"] == "by a test"
