"""Preloaded sessions are Active sessions."""

from benchmarks.workload.events import Workload
from benchmarks.workload.live_sessions import session_rows
from sessionary.schemas.codec import Decoder
from sessionary.schemas.codec.formats import record_format
from sessionary.schemas.records import SessionState
from sessionary.schemas.rules import NEWEST_RULES

BEGAN_MS = 1_795_219_200_000


def test_rows_of_the_first_rules_are_read_by_the_first_release(workload: Workload) -> None:
    header = record_format(SessionState, NEWEST_RULES.version).header
    rows = list(session_rows(workload.templates, 20, 1, BEGAN_MS))
    assert {row.packed.value[: len(header)] for row in rows} == {header}
    newer = session_rows(workload.templates, 20, 1, BEGAN_MS)
    assert [row.key for row in newer] == [row.key for row in rows]


def test_live_sessions_are_sessions(workload: Workload) -> None:
    rows = list(session_rows(workload.templates, 50, 1, BEGAN_MS))
    states = [Decoder().decode_record(row.packed.value) for row in rows]
    assert len({row.key for row in rows}) == 50
    for row, state in zip(rows, states, strict=True):
        assert isinstance(state, SessionState)
        assert row.key == f"{state.tenant_id}:{state.session_id}".encode()
        assert state.state == "Active"
