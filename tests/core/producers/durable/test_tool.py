"""`@tool`: a call is reserved, made once, and recorded."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.error import URLError

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    Invalid,
    Json,
    Retry,
    Session,
    TookEffect,
    ToolCallFailed,
    ToolCallInProgress,
    ToolCallUnresolved,
    Unavailable,
    current_tool_key,
    tool,
)
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import (
    Payload,
    ToolCallResolved,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.events import ToolCallFailed as FailedEvent


class Service:
    """An outside service that counts what was asked of it."""

    def __init__(self, *failures: BaseException) -> None:
        self.calls: list[Json] = []
        self.keys: list[str | None] = []
        self.failures = list(failures)

    def call(self, value: Json) -> Json:
        self.calls.append(value)
        self.keys.append(current_tool_key())
        if self.failures:
            raise self.failures.pop(0)
        return {"sent": value}


def tool_payloads(memory: InMemoryTransport) -> list[Payload]:
    kinds = (ToolCallStarted, ToolCallSucceeded, FailedEvent, ToolCallResolved)
    return [event.payload for event in memory.events() if isinstance(event.payload, kinds)]


def crash_in_call(session: Session, send: Callable[[Json], Json], run_id: str = "r") -> None:
    """Let the process of a run die during a call: its reservation stays."""
    run = session.run("report", run_id=run_id)
    run.__enter__()
    with pytest.raises(KeyboardInterrupt):
        send("hello")
    run._leave_metadata()


def test_a_call_is_reserved_then_made_then_completed() -> None:
    service = Service()
    send = tool(name="send", effect="write")(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert send("hello") == {"sent": "hello"}
    started, succeeded = tool_payloads(memory)
    assert isinstance(started, ToolCallStarted)
    assert isinstance(succeeded, ToolCallSucceeded)
    assert (started.tool_name, started.args_json, started.try_number) == ("send", '{"value":"hello"}', 1)
    assert (started.side_effect, started.queryable, started.limit_ms) == (True, False, None)
    assert (succeeded.tool_call_id, succeeded.idem_key) == (started.tool_call_id, started.idem_key)
    assert succeeded.result_json == '{"sent":"hello"}'
    assert service.keys == [started.idem_key]
    assert len(started.idem_key) == 64
    assert memory.rejections() == []
    assert current_tool_key() is None


def test_the_function_is_called_once_its_reservation_is_judged() -> None:
    client, memory = memory_client()
    seen: list[Payload] = []

    @tool(effect="write")
    def look() -> None:
        seen.extend(tool_payloads(memory))

    with client, client.session(user_id="u"):
        look()
    assert [type(payload) for payload in seen] == [ToolCallStarted]


def test_a_call_that_is_made_once_returns_its_stored_result() -> None:
    service = Service()
    send = tool(name="send", once=True)(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report"):
        assert [send("hello"), send(value="hello"), send("other")] == [{"sent": t} for t in ("hello", "hello", "other")]
    assert service.calls == ["hello", "other"]
    assert memory.rejections() == []


def test_rejected_reservations_are_not_reported() -> None:
    errors: list[Exception] = []
    client, memory = memory_client(on_error=errors.append)
    other, _ = memory_client(memory=memory)
    send = tool(name="send", once=True)(Service().call)
    with client, other, client.session(user_id="u") as session:
        with other.attach(session.session_id) as same:
            send("hello")
            same.lifecycle.detach()
        assert send("hello") == {"sent": "hello"}  # another process has made it meanwhile
        memory.advance(1)
    assert [judged.reason for judged in memory.rejections()] == ["call_succeeded"]
    assert errors == []


def test_another_run_makes_the_call_again() -> None:
    service = Service()
    send = tool(name="send")(service.call)
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        for _ in range(2):
            with session.run("report"):
                send("hello")
    assert len(set(service.keys)) == 2


def test_a_key_of_the_business_names_the_call() -> None:
    service = Service()
    send = tool(name="send", key=lambda value: f"order-{value['order']}")(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert send({"order": 7, "try": 1}) == send({"order": 7, "try": 2})
    assert service.keys == ["order-7"]
    assert {payload.idem_key for payload in tool_payloads(memory) if isinstance(payload, ToolCallStarted)} == {
        "order-7"
    }


def test_a_failure_that_may_pass_is_tried_again_with_growing_waits() -> None:
    service = Service(*(TimeoutError(f"{number}") for number in range(5)))
    send = tool(name="send", effect="write", retry=Retry())(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        began_ms = memory.now_ms
        assert send("hello") == {"sent": "hello"}
    assert memory.now_ms - began_ms == 500 + 1_000 + 2_000 + 4_000 + 8_000
    started = [payload for payload in tool_payloads(memory) if isinstance(payload, ToolCallStarted)]
    assert [payload.try_number for payload in started] == [1, 2, 3, 4, 5, 6]
    assert len({payload.idem_key for payload in started}) == 1
    assert len({payload.tool_call_id for payload in started}) == 1
    assert memory.rejections() == []


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("gone")])
def test_a_call_that_may_have_taken_effect_is_not_repeated(error: Exception) -> None:
    """The service is not asked again, and the call becomes one for people."""
    service = Service(error)
    send = tool(name="send", effect="write", deadline=5)(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(ToolCallUnresolved, match="may have taken effect"), session.run("report", run_id="r"):
            send("hello")
        memory.advance(6)
        with pytest.raises(ToolCallUnresolved), session.resume_run("r"):
            pass
    assert len(service.calls) == 1
    assert [type(payload) for payload in tool_payloads(memory)] == [ToolCallStarted]


@pytest.mark.parametrize("error", [ConnectionRefusedError("closed"), URLError(ConnectionRefusedError("closed"))])
def test_a_call_that_did_not_reach_its_service_is_repeated(error: Exception) -> None:
    service = Service(error)
    send = tool(name="send", effect="write")(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert send("hello") == {"sent": "hello"}
    assert memory.rejections() == []


def test_after_five_retries_the_last_error_is_raised() -> None:
    service = Service(*(ConnectionResetError(f"{number}") for number in range(9)))
    send = tool(name="send", effect="read")(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u"), pytest.raises(ConnectionResetError, match="5"):
        send("hello")
    assert len(service.calls) == 6
    failed = [payload for payload in tool_payloads(memory) if isinstance(payload, FailedEvent)]
    assert [payload.error.error_class for payload in failed] == ["retryable"] * 6


def test_a_fatal_failure_is_raised_at_once_and_the_call_not_repeated() -> None:
    error = PermissionError("not yours")
    service = Service(error)
    send = tool(name="send", effect="write")(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        with pytest.raises(PermissionError) as raised:
            send("hello")
        with pytest.raises(ToolCallFailed, match="not yours"):
            send("hello")
    assert raised.value is error
    assert len(service.calls) == 1
    (failed,) = [payload for payload in tool_payloads(memory) if isinstance(payload, FailedEvent)]
    assert (failed.error.error_class, failed.error.code) == ("fatal", "PermissionError")


def test_a_call_in_progress_elsewhere_is_not_made() -> None:
    client, memory = memory_client()
    other, _ = memory_client(memory=memory)
    service = Service()
    inner = tool(name="send", effect="write", key=lambda value: "k-1")(service.call)
    found: list[ToolCallInProgress] = []

    @tool(name="send", effect="write", key=lambda value: "k-1")
    def outer(value: Json) -> Json:
        with other.attach(session_id) as same, pytest.raises(ToolCallInProgress) as raised:
            inner(value)
        found.append(raised.value)
        same.lifecycle.detach()
        return 1

    with client, other, client.session(user_id="u") as session:
        session_id = session.session_id
        assert outer("hello") == 1
    assert str(found[0]).startswith("Tool call already in progress for idemKey=k-1")
    assert service.calls == []


def test_a_call_may_wait_for_one_in_progress_and_take_its_outcome() -> None:
    client, memory = memory_client()
    crash = tool(name="send", effect="read", deadline=30)(Service(KeyboardInterrupt()).call)
    service = Service()
    send = tool(name="send", effect="read", wait_s=60)(service.call)
    with client, client.session(user_id="u") as session:
        crash_in_call(session, crash)
        with session.run("report", run_id="r", resume=True):
            assert send("hello") == {"sent": "hello"}
    assert memory.rejections() == []


def unresolved(session: Session, memory: InMemoryTransport) -> None:
    """Let a call with an effect die, and its limit pass."""
    crash_in_call(session, tool(name="send", effect="write", deadline=30)(Service(KeyboardInterrupt()).call))
    memory.advance(31)


def test_a_call_that_may_have_taken_effect_waits_for_a_person() -> None:
    client, memory = memory_client()
    service = Service()
    with client, client.session(user_id="u") as session:
        unresolved(session, memory)
        tool(name="send", effect="write")(service.call)
        with pytest.raises(ToolCallUnresolved, match="A person must decide"), session.resume_run("r"):
            pass
    assert service.calls == []


@pytest.mark.parametrize(("answer", "calls"), [(TookEffect({"sent": "before"}), 0), (None, 1)])
def test_a_tool_that_can_be_asked_resolves_its_call(answer: TookEffect | None, calls: int) -> None:
    client, memory = memory_client()
    service, asked = Service(), list[str]()

    def query(key: str) -> TookEffect | None:
        asked.append(key)
        return answer

    with client, client.session(user_id="u") as session:
        unresolved(session, memory)
        send = tool(name="send", effect="write", query=query)(service.call)
        with session.resume_run("r"):
            result = send("hello")
    assert result == {"sent": "hello" if calls else "before"}
    assert len(service.calls) == calls
    (resolved,) = [payload for payload in tool_payloads(memory) if isinstance(payload, ToolCallResolved)]
    assert (resolved.outcome, resolved.resolved_by) == ("failed" if calls else "succeeded", "query of send")
    assert asked == [resolved.idem_key]
    assert memory.rejections() == []


def test_a_write_that_failed_after_its_effect_is_not_repeated_if_the_tool_can_be_asked() -> None:
    service, answers = Service(TimeoutError("answer lost")), [OSError("asked too early"), TookEffect("done")]

    def query(key: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    send = tool(name="send", effect="write", query=query)(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert send("hello") == "done"
    assert len(service.calls) == 1
    assert [type(payload) for payload in tool_payloads(memory)] == [ToolCallStarted, ToolCallSucceeded]


def test_a_silent_control_api_makes_a_call_unavailable_before_it_is_made() -> None:
    service = Service()
    send = tool(name="send")(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        memory.silence_control(silent=True)
        with pytest.raises(Unavailable):
            send("hello")
        memory.silence_control(silent=False)
    assert service.calls == []


def test_outside_a_session_a_tool_is_a_plain_function() -> None:
    service = Service()
    assert tool(name="send")(service.call)("hello") == {"sent": "hello"}
    assert service.keys == [None]


def test_a_rate_bounds_how_fast_calls_follow() -> None:
    client, memory = memory_client()
    send = tool(name="send", calls_per_s=4)(Service().call)
    with client, client.session(user_id="u"):
        began_ms = memory.now_ms
        for number in range(9):
            send(number)
    assert memory.now_ms - began_ms == 2_000


@pytest.mark.parametrize("wrong", [{"effect": "maybe"}, {"deadline": 0}, {"calls_per_s": 0}])
def test_a_wrong_declaration_is_invalid(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        tool(**wrong)


def test_coroutine_functions_are_tools_too() -> None:
    failures, keys = [TimeoutError("slow")], list[str | None]()

    @tool(effect="write", retry=Retry())
    async def send(text: str) -> str:
        """Send it."""
        keys.append(current_tool_key())
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        return text.upper()

    async def main() -> InMemoryTransport:
        sync_client, memory = memory_client()
        client = AsyncSessionClient.wrap(sync_client)
        async with client, client.session(user_id="u") as session, session.run("report"):
            assert [await send("a"), await send("a"), await send("b")] == ["A", "A", "B"]
        return memory

    memory = asyncio.run(main())
    assert send.__doc__ == "Send it."
    assert len(keys) == 4
    assert keys[0] == keys[1]  # it was tried again
    assert len(set(keys)) == 3
    assert memory.rejections() == []
