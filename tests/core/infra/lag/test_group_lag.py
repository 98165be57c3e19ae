"""The lag of whole groups: sums, and what of them is a fault."""

import pytest

from sessionary.infra.lag.lag_tracker import GroupLag, GroupState, PartitionLag, PartitionState, find_fault, sum_groups

GROUP, TOPIC = "p.sink.audit", "p.audit"
LAG = PartitionLag(GROUP, GroupState.STABLE, TOPIC, 0, PartitionState.OK, 4, 0, 10, 6, 20.0, 3.0, 1.5, 4.0)
SUM = GroupLag(GROUP, GroupState.STABLE, 2, PartitionState.OK, 6, 20.0, 1.5, 4.0, 3.0, TOPIC)


def test_a_group_has_the_sum_of_its_lags_the_longest_times_and_the_worst_state() -> None:
    other = LAG._replace(partition=1, state=PartitionState.WARN, lag=4, lag_s=30.0, newest_record_age_s=1.0)
    (found,) = sum_groups([LAG, other._replace(catch_up_s=9.0)])
    assert found == SUM._replace(
        state=PartitionState.WARN, lag=10, lag_s=30.0, records_per_s=3.0, catch_up_s=9.0, newest_record_age_s=1.0
    )


def test_each_topic_of_a_group_is_a_row() -> None:
    rows = list(sum_groups([LAG, LAG._replace(topic="p.invoices"), LAG._replace(group="p.processor")]))
    assert [(row.group, row.topic) for row in rows] == [
        (GROUP, TOPIC),
        (GROUP, "p.invoices"),
        ("p.processor", TOPIC),
    ]


def test_what_no_partition_knows_is_unknown_and_what_one_never_does_is_never() -> None:
    unknown = PartitionLag(GROUP, GroupState.STABLE, TOPIC, 0, PartitionState.UNKNOWN)
    (found,) = sum_groups([unknown])
    assert found[4:9] == (None,) * 5
    (found,) = sum_groups([LAG, LAG._replace(partition=1, catch_up_s=None)])
    assert found.catch_up_s is None
    (found,) = sum_groups([LAG._replace(lag=0, catch_up_s=0.0)])
    assert (found.lag, found.catch_up_s) == (0, 0.0)
    (found,) = sum_groups([PartitionLag(GROUP, GroupState.ABSENT, TOPIC, None, PartitionState.NO_TOPIC)])
    assert (found.partitions, found.state, found.lag) == (0, PartitionState.NO_TOPIC, None)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),  # far behind, but it catches up
        ({"state": PartitionState.OBSERVING}, None),
        ({"state": PartitionState.STALL}, "6 records behind, the oldest of 20 s ago, and it does not move"),
        ({"state": PartitionState.WARN}, "6 records behind, the oldest of 20 s ago, and the lag does not shrink"),
        (
            {"state": PartitionState.REWIND},
            "6 records behind, the oldest of 20 s ago, and its committed offset went back",
        ),
        ({"state": PartitionState.STALL, "lag_s": 10.0}, None),
        ({"state": PartitionState.STALL, "lag_s": None}, None),
        ({"group_state": GroupState.EMPTY}, "6 records behind, the oldest of 20 s ago, and no member reads them"),
        ({"group_state": GroupState.ABSENT, "lag": 0, "lag_s": 0.0}, None),
        ({"state": PartitionState.LOG_GAP, "lag": 0}, "records were deleted before it read them"),
        ({"state": PartitionState.NO_TOPIC, "lag": None}, "its topic does not exist"),
    ],
)
def test_only_a_group_that_does_not_get_on_is_at_fault(changes: dict[str, object], fault: str | None) -> None:
    assert find_fault(SUM._replace(**changes), lag_s_max=10.0) == fault  # type: ignore[arg-type]
