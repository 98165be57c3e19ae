"""Preloaded sessions are Active sessions."""

from benchmarks.workload.events import Workload
from benchmarks.workload.live_sessions import session_rows
from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import SessionState

BEGAN_MS = 1_795_219_200_000


def test_live_sessions_are_sessions(workload: Workload) -> None:
    rows = list(session_rows(workload.templates, 50, 1, BEGAN_MS))
    states = [Decoder().decode_record(row.packed.value) for row in rows]
    assert len({row.key for row in rows}) == 50
    for row, state in zip(rows, states, strict=True):
        assert isinstance(state, SessionState)
        assert row.key == f"{state.tenant_id}:{state.session_id}".encode()
        assert state.state == "Active"
