"""Chats on a real pipeline: one whose user thinks, and one whose user does not come back."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from sessionary.producers import Limits, Rejected, Session, SessionClient, SessionEnded
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.core.sink_kinds import SinkKind
from tests.integration.pipeline_rig import TENANT, PipelineRig, started_pipeline
from tests.integration.sink_rig import settings_for, sink_in_thread
from tests.support.processes import Processes
from tests.support.reading import read_records
from tests.support.waiting import wait_until

SINKS: Sequence[SinkKind] = ("audit", "history", "rejected")
# For longer than a busy machine pauses: it would end a session that is at work for a moment.
LIMITS = Limits(model_ms=3_000, tool_ms=3_000, network_ms=3_000, override=True)
BRIEF = LIMITS._replace(model_ms=60_000, user_idle_ms=1_000)


def new_client(pipeline: PipelineRig, folder: Path, name: str) -> SessionClient:
    settings = pipeline.client_settings(folder, name)
    return SessionClient(
        tenant_id=TENANT, service_id="support", agent_id="chat", settings=settings, on_error=lambda _: None
    )


def reply(session: Session, text: str) -> int:
    with session.turn() as turn:
        session.message("user", text)
        session.message("assistant", f"answer {turn.number}")
    session.sync()
    return turn.number


def test_a_chat_waits_for_its_user_and_ends_without_a_timeout(
    kafka: KafkaSettings, tables: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = started_pipeline(kafka, processes, tables)
    with new_client(pipeline, tmp_path, "first") as first, new_client(pipeline, tmp_path, "third") as third:
        chat, gone = (first.session(user_id="ann", limits=limits) for limits in (LIMITS, BRIEF))
        assert [reply(session, "hello") for session in (chat, gone)] == [1, 1]
        dead = first.session(user_id="bob", limits=LIMITS)  # without turns: its process dies
        dead.sync()
        dead.lifecycle.detach()
        wait_until(lambda: state_of(pipeline, dead)[0] == "Timeout", 60, "a session without turns to time out")
        wait_until(lambda: state_of(pipeline, gone)[0] == "Terminated", 60, "the user's time to be over")
        with pytest.raises(SessionEnded, match="user_idle"):
            reply(gone, "too late")
        assert state_of(pipeline, chat) == ("Active", "waiting", 1)
        with new_client(pipeline, tmp_path, "second") as second:
            again = second.attach(chat.session_id)
            with again.turn() as turn:
                assert turn.number == 2
                with pytest.raises(Rejected, match="phase_order"), third.attach(chat.session_id).turn():
                    pass
            assert reply(again, "and now?") == 3
            again.close()
    cleanups = [each for each in read_records(kafka, kafka.topics.cleanup) if isinstance(each, CleanupRequest)]
    assert {each.session_id: each.reason_code for each in cleanups} == {
        chat.session_id: "closed",
        gone.session_id: "user_idle",
        dead.session_id: "inactive",
    }

    with ExitStack() as sinks:
        for kind in SINKS:
            sinks.enter_context(sink_in_thread(kind, settings_for(kafka, tables)))
        pipeline.wait_landed()
    found = {row[0]: row[1:] for row in pipeline.sql("SELECT session_id, state, timeouts, turns FROM {db}.v_sessions")}
    assert {session.session_id: found[session.session_id] for session in (chat, gone)} == {
        chat.session_id: ["Terminated", "0", "4"],
        gone.session_id: ["Terminated", "0", "2"],
    }
    assert pipeline.sql("SELECT session_id, reason_code FROM {db}.v_timeouts") == [[dead.session_id, "inactive"]]
    deadlines = "SELECT clock, transition, to_state, reason_code FROM {{db}}.v_deadlines WHERE session_id = '{}'"
    assert pipeline.sql(deadlines.format(gone.session_id)) == [["user_idle", "T13", "Terminated", "user_idle"]]
    assert pipeline.sql(deadlines.format(chat.session_id)) == []


def state_of(pipeline: PipelineRig, session: Session) -> tuple[str, str | None, int]:
    found = pipeline.ask(session.session_id)
    return found["state"], found["phase"], found["exchanges"]
