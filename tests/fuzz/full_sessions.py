"""Sessions that are full: of open runs, of children, or of producers.

To fill them takes more than ten thousand records, so a process folds these once, and each of its
runs begins with the rows that came of them.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import count
from typing import Any, NamedTuple

from sessionary.schemas.ids import partition_of
from sessionary.schemas.limits import AGENTS_MAX, CHILDREN_MAX, RUNS_OPEN_MAX
from sessionary.schemas.records import Position
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.sequencing import FORGOTTEN_MAX, PRODUCERS_MAX
from tests.core.oracle_rig import DECODER, FIRST_POSITION, START_MS
from tests.core.record_fuzzer import FOREVER, PARTITIONS
from tests.support.event_factory import EventFactory
from tests.support.judges import JUDGE


class FullSessions(NamedTuple):
    """The rows and the position of a partition whose sessions are full, and the sessions' names."""

    rows: Mapping[bytes, Any]
    position: Position
    of_runs: str
    of_children: str
    of_producers: str


def agent_of(name: str) -> EventFactory:
    """Return an agent of a full session that has sent nothing yet."""
    return EventFactory(name, producer="late")


@cache
def full_sessions() -> FullSessions:
    """Fold what fills the sessions; the same rows for each caller, who changes none."""
    names = [_home_name(what) for what in ("runs", "children", "producers")]
    settings = PartitionSettings("sessionary.events", PARTITIONS)
    state = PartitionState(0, settings, DECODER, JUDGE)
    state.load_position(FIRST_POSITION)
    state.finish_loading()
    values = iter([(one.key.encoded(), value) for one, value in _filling(*map(EventFactory, names))])
    waiting, offset = next(values, None), 0
    while waiting is not None:
        batch = state.begin()
        while waiting is not None and batch.apply(LogRecord(offset, START_MS, *waiting)):
            waiting, offset = next(values, None), offset + 1
        outcome = batch.finish()
        assert not outcome.rejections, "what fills a session is valid"
        state.merge(batch)
    return FullSessions(state.rows, state.position, *names)


def _home_name(what: str) -> str:
    """Return the name of a session of partition 0."""
    names = (f"full-of-{what}-{number}" for number in count())
    return next(name for name in names if partition_of(EventFactory(name).key.encoded(), PARTITIONS) == 0)


def _filling(
    runs: EventFactory, children: EventFactory, producers: EventFactory
) -> Iterator[tuple[EventFactory, bytes]]:
    """Yield the events, with their agents: three sessions that start, and what fills each."""
    for agent in (runs, children, producers):
        yield agent, agent.event_bytes("session_created", limits=FOREVER)
        for phase in ("validating", "connecting"):
            yield agent, agent.event_bytes("session_phase_changed", phase=phase)
        yield agent, agent.event_bytes("session_started")
    for number in range(RUNS_OPEN_MAX):  # attached ones: their limit is long, and silence ends none
        yield runs, runs.event_bytes("run_started", {"run_id": f"open-{number}"}, mode="attached", plan_json=None)
    for number in range(AGENTS_MAX):
        yield runs, runs.event_bytes("agent_registered", agent_id=f"agent-{number}")
    for number in range(CHILDREN_MAX):
        yield children, children.event_bytes("artifact_created", artifact_id=f"kept-{number}")
    for number in range(PRODUCERS_MAX + FORGOTTEN_MAX - 1):  # its own agent is one too
        marks = {"producer_id": f"other-{number}", "producer_seq": 1}
        yield producers, producers.event_bytes("session_activity", marks)
