"""From samples to lags, without Kafka."""

from collections.abc import Mapping

import pytest

from sessionary.infra.lag.lag_tracker import (
    ClusterSample,
    FirstRecord,
    GroupOffsets,
    GroupState,
    LagTracker,
    LogPartition,
    LogRange,
    Observation,
    PartitionLag,
    PartitionState,
    UnreadPosition,
    is_service_group,
    judge_partition,
    pipeline_groups,
    topic_of_group,
)
from sessionary.schemas.topics import TopicNames
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.settings import SinkSettings
from sessionary.stream_processors.quotas.settings import QuotaSettings
from sessionary.stream_processors.settings import ProcessorSettings

TOPIC, GROUP = "p.audit", "p.sink.audit"
PLACE = LogPartition(TOPIC, 0)
NOW_S = 1_000_000.0


def _sample(
    committed: int | None,
    log: LogRange | None,
    *,
    at_s: float = NOW_S,
    first: FirstRecord | None = None,
    state: GroupState = GroupState.STABLE,
) -> ClusterSample:
    """One group with one partition; `first` is what was read where the group goes on."""
    offsets: Mapping[LogPartition, int] = {} if committed is None else {PLACE: committed}
    group = GroupOffsets(GROUP, state, frozenset({TOPIC}), offsets)
    logs = {} if log is None else {PLACE: log}
    sample = ClusterSample(at_s, (group,), {TOPIC: 1}, logs, {})
    return sample._replace(first_records=dict.fromkeys(sample.unread_positions(), first) if first is not None else {})


def _of_history(sample: ClusterSample) -> ClusterSample:
    """The same sample of the history sink, which reads ticks and heartbeats."""
    (group,), place = sample.groups, LogPartition("p.events", 0)
    committed = None if group.committed is None else {place: group.committed[PLACE]}
    return ClusterSample(
        sample.at_s,
        (GroupOffsets("p.sink.history", group.state, frozenset({place.topic}), committed),),
        {place.topic: 1},
        {place: sample.logs[PLACE]},
        {UnreadPosition(place, unread.offset): first for unread, first in sample.first_records.items()},
    )


def _lag(sample: ClusterSample, tracker: LagTracker | None = None) -> PartitionLag:
    (lag,) = (tracker or LagTracker()).track_sample(sample)
    return lag


def test_a_lag_counts_from_the_committed_offset_and_its_age_from_the_first_record() -> None:
    log = LogRange(2, 10, int(NOW_S - 3) * 1_000)
    lag = _lag(_sample(4, log, first=FirstRecord(5, int(NOW_S - 20) * 1_000)))
    assert (lag.lag, lag.lag_s, lag.newest_record_age_s) == (6, 20.0, 3.0)
    assert (lag.committed, lag.log_start, lag.log_end, lag.state) == (4, 2, 10, "observing")


def test_a_partition_without_a_commit_counts_in_full() -> None:
    lag = _lag(_sample(None, LogRange(2, 10, None), first=FirstRecord(2, int(NOW_S - 20) * 1_000)))
    assert (lag.committed, lag.lag, lag.lag_s) == (None, 8, 20.0)


@pytest.mark.parametrize("committed", [None, 0, 9])
def test_nothing_but_markers_is_no_lag(committed: int | None) -> None:
    lag = _lag(_sample(committed, LogRange(0, 10, None), first=FirstRecord(10, None)))
    assert (lag.lag, lag.lag_s, lag.state, lag.catch_up_s) == (0, 0.0, "ok", 0.0)


def test_a_lag_counts_in_full_until_its_records_were_read() -> None:
    lag = _lag(_sample(4, LogRange(0, 10, None)))
    assert (lag.lag, lag.lag_s) == (6, None)


def test_a_broker_whose_clock_is_ahead_makes_no_negative_age() -> None:
    assert _lag(_sample(4, LogRange(0, 10, None), first=FirstRecord(4, int(NOW_S + 5) * 1_000))).lag_s == 0.0


@pytest.mark.parametrize(
    ("committed", "log", "lag", "state"),
    [
        (4, LogRange(6, 10, None), 6, "log_gap"),  # as Kafka's own command counts it
        (4, LogRange(10, 10, None), 0, "log_gap"),  # all of it was deleted
        (12, LogRange(6, 10, None), 0, "log_truncated"),
        (10, LogRange(6, 10, None), 0, "ok"),
    ],
)
def test_a_log_that_does_not_hold_the_committed_offset_has_a_name(
    committed: int, log: LogRange, lag: int, state: str
) -> None:
    first = FirstRecord(log.start, int(NOW_S) * 1_000)
    found = _lag(_sample(committed, log, first=first))
    assert (found.lag, found.state) == (lag, state)


def test_what_is_not_known_has_a_name_and_no_figure() -> None:
    silent_leader = _lag(_sample(4, None))
    no_topic = _lag(_sample(4, None)._replace(partition_counts={}))
    sample = _sample(4, LogRange(0, 10, None))
    no_coordinator = _lag(sample._replace(groups=(GroupOffsets(GROUP, GroupState.UNKNOWN, frozenset({TOPIC}), None),)))
    assert [lag.state for lag in (silent_leader, no_topic, no_coordinator)] == ["unknown", "no_topic", "unknown"]
    assert no_topic.partition is None
    for lag in (silent_leader, no_topic, no_coordinator):
        assert lag[5:] == (None,) * 8
    assert no_coordinator.group_state == "unknown"


@pytest.mark.parametrize("state", [GroupState.EMPTY, GroupState.ABSENT])
def test_a_group_without_members_stops_once_its_record_is_a_window_old(state: GroupState) -> None:
    for age_s, wanted in ((30, "observing"), (60, "stop")):
        first = FirstRecord(4, int(NOW_S - age_s) * 1_000)
        found = _lag(_sample(4, LogRange(0, 10, None), first=first, state=state))
        assert (found.state, found.group_state) == (wanted, state)


def test_rates_are_those_of_the_window_and_tell_when_the_lag_is_gone() -> None:
    tracker = LagTracker(window_s=60.0)
    found = [
        _lag(
            _sample(10 * second, LogRange(0, 2_000 + 4 * second, None), at_s=NOW_S + second, first=FirstRecord(0, 0)),
            tracker,
        )
        for second in range(100)
    ]
    assert (found[0].records_per_s, found[0].catch_up_s) == (None, None)
    assert found[1].records_per_s == pytest.approx(10.0)
    assert found[-1].records_per_s == pytest.approx(10.0)
    assert found[-1].catch_up_s == pytest.approx((2_000 - 6 * 99) / 6)
    assert [found[59].state, found[60].state] == ["observing", "ok"]


def test_a_lag_that_grows_is_never_caught_up() -> None:
    tracker = LagTracker(window_s=60.0)
    for second in range(0, 70, 10):
        lag = _lag(
            _sample(second, LogRange(0, 100 + 2 * second, None), at_s=NOW_S + second, first=FirstRecord(0, 0)), tracker
        )
    assert lag.records_per_s == pytest.approx(1.0)
    assert (lag.catch_up_s, lag.state) == (None, PartitionState.WARN)


def test_a_partition_that_went_away_is_forgotten() -> None:
    tracker = LagTracker(window_s=60.0)
    stalled = _sample(4, LogRange(0, 10, None), first=FirstRecord(4, 0))
    _lag(stalled, tracker)
    _lag(_sample(4, None, at_s=NOW_S + 30), tracker)
    assert _lag(stalled._replace(at_s=NOW_S + 60), tracker).state == "observing"


def test_only_places_with_something_to_read_are_asked_for() -> None:
    groups = tuple(
        GroupOffsets(group, GroupState.STABLE, frozenset({TOPIC}), committed)
        for group, committed in (("a", {PLACE: 4}), ("b", {PLACE: 4}), ("c", {PLACE: 10}), ("d", {}), ("e", None))
    )
    sample = ClusterSample(NOW_S, groups, {TOPIC: 2}, {PLACE: LogRange(3, 10, None)}, {})
    assert sample.unread_positions() == {UnreadPosition(PLACE, 4), UnreadPosition(PLACE, 3)}


def _tick_of(age_s: float, at_s: float = NOW_S) -> FirstRecord:
    return FirstRecord(4, round((at_s - age_s) * 1_000), is_idle=True)


@pytest.mark.parametrize(("age_s", "lag_s", "state"), [(20, 0.0, "ok"), (60, 0.0, "ok"), (75, 15.0, "observing")])
def test_a_tick_that_a_sink_lets_wait_is_lag_in_records_but_neither_late_nor_a_fault(
    age_s: float, lag_s: float, state: str
) -> None:
    found = _lag(_of_history(_sample(4, LogRange(0, 10, None), first=_tick_of(age_s))), LagTracker(idle_s=60.0))
    assert (found.lag, found.lag_s, found.state) == (6, lag_s, state)


def test_a_partition_with_a_block_of_ticks_a_minute_never_stalls() -> None:
    tracker = LagTracker(window_s=60.0, idle_s=60.0)
    states = set()
    for second in range(0, 300, 5):
        at_s, committed = NOW_S + second, second // 61 * 61
        sample = _sample(4, LogRange(0, 1_000 + second, None), at_s=at_s, first=_tick_of(second - committed, at_s))
        states.add(_lag(_of_history(sample), tracker).state)
    assert states == {"ok"}


def test_a_tick_counts_in_full_for_a_group_that_lets_nothing_wait() -> None:
    processor = _of_history(_sample(4, LogRange(0, 10, None), first=_tick_of(20)))
    processor = processor._replace(groups=(processor.groups[0]._replace(group="p.processor"),))
    assert _lag(processor, LagTracker(idle_s=60.0)).lag_s == 20.0
    deserted = _of_history(_sample(4, LogRange(0, 10, None), first=_tick_of(20), state=GroupState.EMPTY))
    assert _lag(deserted, LagTracker(idle_s=60.0)).lag_s == 20.0


NAMES = TopicNames.with_prefix("p")


def test_the_groups_are_those_of_the_roles() -> None:
    sinks = SinkSettings(topic_prefix="p")
    wanted = {ProcessorSettings(topic_prefix="p").group_id: NAMES.events}
    wanted |= {sinks.group_id(kind): getattr(NAMES, sink.topic) for kind, sink in SINKS.items()}
    assert pipeline_groups("p", []) == wanted


def test_extra_pipelines_and_clean_up_handlers_are_found() -> None:
    extra = SinkSettings(topic_prefix="p", pipeline="copy").group_id("history")
    known = [
        extra,
        "p.cleanup.acme:billing",
        "p.migration.acme:billing",
        "p.task-workers.acme:billing",
        "p.quotas",
        "p.lag",
        "p.sink.unknown",
        "q.processor",
        "p.processor.reader",
    ]
    found = pipeline_groups("p", known)
    services = ["p.cleanup.acme:billing", "p.migration.acme:billing", "p.task-workers.acme:billing"]
    assert list(found)[5:] == [*services[:2], "p.quotas", extra, services[2]]
    assert found[QuotaSettings(topic_prefix="p").group_id] == NAMES.quotas
    assert (found[extra], found["p.cleanup.acme:billing"]) == (NAMES.events, NAMES.cleanup)
    assert found["p.task-workers.acme:billing"] == NAMES.tasks
    assert found["p.migration.acme:billing"] == NAMES.migrations
    assert topic_of_group("p", "p.processor") == NAMES.events


def test_the_groups_of_services_are_none_of_the_pipeline_s_roles() -> None:
    services = ["p.cleanup.acme:billing", "p.migration.acme:billing", "p.task-workers.acme:billing"]
    groups = [*pipeline_groups("p", services), "q.cleanup.acme:billing"]
    assert [group for group in groups if is_service_group("p", group)] == services


WINDOW_S = 60.0
# Offsets and lags in steps of 20 s, the last at the window's end.
Steps = list[tuple[int | None, int]]


def _observations(steps: Steps, step_s: float = 20.0) -> list[Observation]:
    return [
        Observation(number * step_s, committed, (committed or 0) + lag, lag)
        for number, (committed, lag) in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([(5, 9), (5, 9), (5, 9), (5, 0)], "ok"),  # no lag now, whatever there was
        ([(5, 0), (5, 3), (5, 6), (5, 9)], "ok"),  # at the end once in the window
        ([(5, 9), (4, 10), (6, 8), (7, 7)], "rewind"),
        ([(5, 9), (None, 14), (None, 14), (None, 14)], "rewind"),  # the commit is gone
        ([(5, 9), (5, 9), (5, 9), (5, 9)], "stall"),
        ([(5, 9), (5, 10), (5, 11), (5, 12)], "stall"),
        ([(None, 9), (None, 9), (None, 9), (None, 9)], "stall"),  # it never commits
        ([(5, 9), (6, 9), (7, 9), (8, 9)], "warn"),
        ([(5, 9), (6, 10), (7, 11), (8, 12)], "warn"),
        ([(5, 9), (5, 9), (5, 9), (6, 9)], "warn"),
        ([(5, 9), (6, 10), (9, 8), (10, 9)], "ok"),  # it fell once
        ([(None, 9), (3, 6), (6, 3), (8, 1)], "ok"),  # the first commit is no rewind
    ],
)
def test_a_group_with_members_is_judged_by_its_window(steps: Steps, state: str) -> None:
    found = judge_partition(_observations(steps), window_s=WINDOW_S, has_members=True)
    assert found == PartitionState(state)


@pytest.mark.parametrize(
    ("steps", "lag_s", "state"),
    [
        ([(5, 0)], 0.0, "ok"),
        ([(5, 9)], 59.0, "observing"),  # before the oldest unread record there was nothing to read
        ([(5, 9)], 60.0, "stop"),  # its age alone proves it: one observation is enough
        ([(5, 9)], None, "observing"),
        ([(5, 9), (5, 9), (5, 9)], None, "observing"),
        ([(5, 9), (5, 9), (5, 9), (5, 9)], None, "stop"),
        ([(5, 0), (5, 9), (5, 9), (5, 9)], 40.0, "ok"),  # it was at the end a minute ago
        ([(5, 0), (5, 9), (5, 9), (5, 9), (5, 9)], 70.0, "stop"),
        ([(9, 9), (5, 13), (5, 13), (5, 13)], 90.0, "stop"),  # worse than a rewind
        ([(None, 9)], 90.0, "stop"),
    ],
)
def test_a_group_without_members_has_stopped(steps: Steps, lag_s: float | None, state: str) -> None:
    found = judge_partition(_observations(steps), window_s=WINDOW_S, has_members=False, lag_s=lag_s)
    assert found == PartitionState(state)


def test_nothing_but_the_end_of_the_log_is_said_before_the_window_is_filled() -> None:
    short: list[Steps] = [[(5, 9)], [(5, 9), (4, 10)], [(5, 9), (5, 9), (5, 9)]]
    for steps in short:
        assert judge_partition(_observations(steps), window_s=WINDOW_S, has_members=True) == "observing"


def test_what_lies_before_the_window_is_forgotten() -> None:
    older: Steps = [(9, 0), (1, 8), (1, 8)]
    within: Steps = [(2, 7), (3, 7), (4, 7), (5, 7)]
    assert judge_partition(_observations(older + within), window_s=WINDOW_S, has_members=True) == "warn"
    # The window begins with the youngest observation that is a window old.
    assert judge_partition(_observations([(1, 0), (2, 7), (3, 7)], 50.0), window_s=WINDOW_S, has_members=True) == "ok"


def test_a_small_lag_may_be_allowed() -> None:
    stalled = _observations([(5, 9), (5, 9), (5, 9), (5, 9)])
    assert judge_partition(stalled, window_s=WINDOW_S, has_members=True, lag_max=9) == "ok"
    assert judge_partition(stalled, window_s=WINDOW_S, has_members=True, lag_max=8) == "stall"


def test_the_states_are_ordered_by_what_they_cost() -> None:
    states = sorted(PartitionState, key=lambda state: state.severity)
    assert (states[0], states[-1]) == (PartitionState.OK, PartitionState.NO_TOPIC)
    assert PartitionState.WARN.severity < PartitionState.STALL.severity < PartitionState.LOG_GAP.severity
