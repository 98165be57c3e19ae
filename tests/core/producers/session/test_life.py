"""The verbs of a session's life: start, ways to end."""

import json
from collections.abc import Callable

import pytest

from sessionary.producers import (
    Session,
    SessionEnded,
)
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import (
    LlmDecision,
    SessionStarted,
    SessionStartFailed,
    SessionTerminated,
)
from tests.core.producers.sent_events import START_EVENTS, sent_types


def test_readme_size_example() -> None:
    client, memory = memory_client(tenant_id="acme", service_id="billing", agent_id="agent-1")
    with client, client.session(user_id="u1", state={"step": 0}, data_classes=("personal",)) as s:
        s.activity("llm", "thinking")
        s.emit(LlmDecision(model="m", chosen_tools=["search"]))
        s.usage(model="m", tokens_in=120, tokens_out=40, model_cost_usd_nanos=900)
        s.progress(0.5, total=1.0)
        s.update_state({"step": 1})
        s.pause("waiting for a human")
        assert s.resume() == {"step": 1}
        s.complete("done")
    assert sent_types(memory)[-1] == "session_terminated"


def test_the_start_sends_its_phases_in_order() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        s.activity("x")
    assert sent_types(memory) == [*START_EVENTS, "session_activity", "session_terminated"]
    phases = [json.loads(json.dumps(event.payload))[0] for event in memory.events()[1:3]]
    assert phases == ["validating", "connecting"]


def nothing(session: Session) -> None:
    return None


def pause(session: Session) -> None:
    session.pause()


def error(session: Session) -> None:
    session.error(ValueError("x"))


@pytest.mark.parametrize(
    ("before", "raised", "last"),
    [
        (nothing, None, ["closed"]),
        (pause, None, ["cancelled"]),
        (error, None, ["unrecoverable"]),
        (nothing, ValueError, ["session_errored", "unrecoverable"]),
        (pause, ValueError, ["cancelled"]),
        (error, ValueError, ["unrecoverable"]),
        (nothing, KeyboardInterrupt, ["cancelled"]),
        (nothing, BaseException, ["abnormal_termination"]),
        (pause, KeyboardInterrupt, ["cancelled"]),
        (pause, BaseException, ["cancelled"]),
        (error, KeyboardInterrupt, ["forced"]),
        (error, BaseException, ["forced"]),
    ],
)
def test_leaving_sends_the_legal_last_event(
    before: Callable[[Session], None], raised: type[BaseException] | None, last: list[str]
) -> None:
    client, memory = memory_client()

    def body() -> None:
        with client.session(user_id="u") as s:
            before(s)
            if raised is not None:
                raise raised

    with client:
        if raised is None:
            body()
        else:
            with pytest.raises(raised):
                body()
        sent = memory.events()[-len(last) :]
        said = [e.payload.reason if isinstance(e.payload, SessionTerminated) else e.envelope.event_type for e in sent]
        assert said == last
        assert sent_types(memory).count("session_terminated") == 1


@pytest.mark.parametrize(("step", "reason"), [("validate", "invalid_config"), ("connect", "connection_failed")])
def test_a_start_that_fails_ends_the_session_and_raises(step: str, reason: str) -> None:
    client, memory = memory_client()

    def fail() -> None:
        raise OSError("no")

    with client:
        with pytest.raises(OSError, match="no"):
            client.session(user_id="u", validate=fail if step == "validate" else None, connect=fail)
        failed = memory.events()[-1].payload
        assert isinstance(failed, SessionStartFailed)
        assert failed.reason == reason
        assert failed.message == "OSError: no"


def test_a_session_that_was_ended_takes_no_more_verbs_and_close_is_harmless() -> None:
    client, memory = memory_client()
    with client:
        s = client.session(user_id="u")
        s.complete()
        s.close()
        with pytest.raises(SessionEnded):
            s.activity("x")
        assert sent_types(memory).count("session_terminated") == 1


def test_a_detached_session_leaves_without_a_word() -> None:
    client, memory = memory_client()
    with client:
        with client.session(user_id="u") as s:
            s.lifecycle.detach()
        assert sent_types(memory) == START_EVENTS


def test_a_session_started_without_the_context_manager() -> None:
    client, memory = memory_client()
    with client:
        s: Session = client.create(user_id="u")
        assert s.local_state == "Idle"
        s.start()
        assert isinstance(memory.events()[-1].payload, SessionStarted)
        client.create(user_id="u").close()
        assert isinstance(memory.events()[-1].payload, SessionStartFailed)
