"""The names and sentences of all roles' metrics, and the page that lists them."""

import re
from collections import Counter

import pytest

from docs.build.metrics_table import PAGE as METRICS_PAGE
from docs.build.metrics_table import ROLES, ListedMetric, listed_metrics, metrics_page

LISTED = listed_metrics()
# What bounds the number of a label's values. None is taken from an event: agents could make series.
BOUNDED_LABELS = {
    "outcome": "a list in the code",
    "reason": "a list in the code, or librdkafka's names of errors",
    "policy": "a list in the code",
    "security": "true or false",
    "from_state": "states of a session",
    "to_state": "states of a session",
    "state": "states of sessions, runs, calls, groups and partitions",
    "layer": "a list in the code",
    "source": "a list in the code",
    "kind": "a list in the code",
    "partition": "partitions of a topic",
    "sink": "kinds of sinks",
    "group": "roles, and services that have handlers or task workers",
    "topic": "topics of the pipeline, and those of a user's own agents",
    "table": "tables",
    "quantile": "three",
    "disk": "disks of ClickHouse",
}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def find_faults(metric: ListedMetric) -> list[str]:
    """Return what is wrong with a metric, by Prometheus' rules for names and ours."""
    words = metric.sentence.split()
    wrong = {
        "its name is no snake_case": not _NAME.fullmatch(metric.name),
        "its name begins with no role": metric.role not in ROLES,
        "a counter's name ends in _total, and no other": (metric.type == "counter") != metric.name.endswith("_total"),
        "its name ends in no unit and names nothing that is counted": metric.unit is None,
        "a label is no snake_case": not all(map(_NAME.fullmatch, metric.labels)),
        "it has no sentence": len(words) < 2 or not metric.sentence.endswith("."),
        "its name ends in another unit than the sentence begins with": metric.sentence.startswith(("Seconds", "Bytes"))
        and words[0].lower() != metric.unit,
    }
    return [fault for fault, holds in wrong.items() if holds]


def test_metrics_are_named_and_explained() -> None:
    found = {metric.name: find_faults(metric) for metric in LISTED}
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_every_label_has_a_bounded_number_of_values() -> None:
    assert {label for metric in LISTED for label in metric.labels} == BOUNDED_LABELS.keys()


def test_no_metric_is_listed_twice() -> None:
    assert [name for name, times in Counter(metric.name for metric in LISTED).items() if times > 1] == []


def test_the_page_lists_every_metric() -> None:
    assert METRICS_PAGE.read_text("utf-8") == metrics_page(), "make docs brings it up to date"
    assert metrics_page().count("\n| `sessionary_") == len(LISTED) > 40


GOOD = ListedMetric("sessionary_sink_lag_seconds", "sink", "gauge", ("partition",), "seconds", "Seconds of lag.")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": "sessionary_sink_lagSeconds"}, "snake_case"),
        ({"name": "kafka_lag_seconds", "role": ""}, "no role"),
        ({"type": "counter"}, "_total"),
        ({"name": "sessionary_sink_lag_seconds_total"}, "_total"),
        ({"unit": None, "sentence": "The lag."}, "no unit"),
        ({"labels": ("Partition",)}, "label"),
        ({"sentence": ""}, "sentence"),
        ({"sentence": "Bytes of lag."}, "another unit"),
    ],
)
def test_the_rules_for_metrics_can_fail(change: dict[str, object], fault: str) -> None:
    assert find_faults(GOOD) == []
    (found,) = find_faults(GOOD._replace(**change))  # type: ignore[arg-type]
    assert fault in found
