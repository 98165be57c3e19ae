"""The judge of sessions and its home rows."""

from typing import Any

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import Position, SessionState, Tombstone, TombstoneChunk
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.session.judge import SessionJudge
from sessionary.stream_processors.core.session.rows import SessionRows
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory


def test_it_writes_to_six_topics() -> None:
    assert SESSION_JUDGE.streams == {"audit", "rejected", "cleanup", "tasks", "migrations", "quotas"}


def test_its_home_rows_are_sessions_which_live_and_tombstones_which_do_not() -> None:
    live = {SessionState: True, Tombstone: False, TombstoneChunk: False}
    home = SESSION_JUDGE.families[0]
    assert {kind.row_class: kind.live for kind in home.kinds} == live


def test_it_reads_the_rows_that_it_wrote_and_nothing_else() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    home, row = SessionRows(), rig.row_of(agent)
    (kind,) = (kind for kind in home.kinds if kind.row_class is SessionState)
    written = kind.encode(row, NEWEST_RULES.version)
    assert written[:10] in kind.prefixes
    assert home.decode(written) == row
    with pytest.raises(DecodeError) as raised:
        home.decode(encode_record(Position(0, 0, 0, 0, 0)))
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
    evolve: Any = SessionJudge.evolve

    def note_fact(judge: SessionJudge, row: SessionState, fact: object) -> Any:
        applied.append(type(fact).__name__)
        return evolve(judge, row, fact)

    with pytest.MonkeyPatch.context() as patch:  # no fixture: the mutants' suite has none
        patch.setattr(SessionJudge, "evolve", note_fact)
        rig.at += 1_000
        assert rig.send(agent, event_type, **fields) == "applied"
    assert applied == facts
    row = rig.row_of(agent)
    assert (row.last_event_at, row.owner_heard_at) == (rig.at, rig.at)
