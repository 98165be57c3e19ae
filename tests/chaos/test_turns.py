"""The turns of a background session meet what they are for."""

import pytest

from sessionary.producers.testing import memory_client
from sessionary.schemas.types import RunMode
from tests.chaos.turns import TURNS_PER_ROUND, emit_turn


@pytest.mark.parametrize("mode", ["attached", "detached"])
def test_a_round_reserves_twice_loses_a_call_and_tells_its_outcome(mode: RunMode) -> None:
    client, memory = memory_client()
    with client.session(user_id="u1", state={}) as session, session.run("chat", mode=mode):
        for turn in range(TURNS_PER_ROUND):
            emit_turn(session, turn, holds_run=mode == "attached")
            memory.advance(0.02)
    assert [rejected.reason for rejected in memory.rejected_records()] == ["call_in_progress", "call_succeeded"]
    held = ["call_unresolved", "call_resolved"] if mode == "attached" else []
    reported = [line.reason_code for line in memory.audit() if line.kind in ("run", "tool_call")]
    assert reported == ["tool_call_limit", *held]
