"""What the session's machine says of itself: its rows, its events, its topics."""

from typing import Any

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import Gravestone, GravestoneChunk, Position, SessionState
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.machine import NO_SESSION, Arrival, Fault
from sessionary.stream_processors.core.model import EventLog, LogRecord
from sessionary.stream_processors.core.session.machine import SessionMachine
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import START_MS, OracleRig
from tests.support.event_factory import EventFactory


def test_it_decides_on_every_event_and_writes_to_six_topics() -> None:
    machine = SessionMachine()
    assert machine.event_types == set(PAYLOADS)
    assert machine.streams == {"audit", "rejected", "cleanup", "tasks", "migrations", "quotas"}


def test_its_rows_are_sessions_which_live_and_gravestones_which_do_not() -> None:
    machine = SessionMachine()
    live = {SessionState: True, Gravestone: False, GravestoneChunk: False}
    assert {kind.row_class: kind.live for kind in machine.row_kinds} == live


@pytest.mark.parametrize(("key", "row_key"), [(b"acme/s", b"acme/s"), (None, b"")])
def test_a_sessions_row_is_under_its_records_own_key(key: bytes | None, row_key: bytes) -> None:
    record = LogRecord(0, START_MS, key, None)
    fault = Fault("bad_key", "no value")
    arrival = Arrival(record, NO_SESSION, None, fault, EventLog("t", 0, 1), START_MS, NEWEST_RULES)
    assert SessionMachine().row_key(arrival) == row_key


def test_it_reads_the_rows_that_it_wrote_and_nothing_else() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    machine, row = SessionMachine(), rig.row_of(agent)
    (kind,) = (kind for kind in machine.row_kinds if kind.row_class is SessionState)
    written = kind.encode(row, NEWEST_RULES.version)
    assert written[:10] in kind.prefixes
    assert machine.decode(written) == row
    with pytest.raises(DecodeError) as raised:
        machine.decode(encode_record(Position(0, 0, 0, 0, 0)))
    assert (raised.value.reason, raised.value.detail) == ("unknown_schema", "a Position is no row")


@pytest.mark.parametrize(
    ("event_type", "fields", "facts"),
    [
        ("session_activity", {}, ["WorkDone"]),
        ("heartbeat", {}, ["HeartbeatSeen"]),
        ("session_phase_changed", {"phase": "updating"}, ["SequenceMoved", "PhaseMoved"]),
        ("session_paused", {}, ["SequenceMoved", "Transitioned"]),
    ],
)
def test_a_row_is_copied_for_few_facts_of_an_event(event_type: str, fields: dict[str, Any], facts: list[str]) -> None:
    rig, agent, applied = FoldRig(), EventFactory(), []
    rig.start(agent)
    evolve: Any = SessionMachine.evolve

    def note_fact(row: SessionState, fact: object) -> Any:
        applied.append(type(fact).__name__)
        return evolve(row, fact)

    with pytest.MonkeyPatch.context() as patch:  # no fixture: the mutants' suite has none
        patch.setattr(SessionMachine, "evolve", staticmethod(note_fact))
        rig.at += 1_000
        assert rig.send(agent, event_type, **fields) == "applied"
    assert applied == facts
    row = rig.row_of(agent)
    assert (row.last_event_at, row.owner_heard_at) == (rig.at, rig.at)
