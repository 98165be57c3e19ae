"""What a tool's failure is in the record, and what the tool's declaration makes of it."""

from http.client import RemoteDisconnected
from urllib.error import URLError

import pytest

from sessionary.producers import ModelTimeout, ToolCallUnresolved, tool
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import ToolCallFailed as FailedEvent
from sessionary.schemas.events import ToolCallStarted, ToolCallSucceeded
from tests.core.producers.context.test_error_info import StatusError, http_error
from tests.core.producers.durable.test_tool import Service, tool_payloads

# The network's jitter, too many requests, errors of a server, and a model that does not answer.
PASSING = [
    *(ConnectionResetError("gone"), RemoteDisconnected("gone"), URLError(TimeoutError("slow"))),
    *(StatusError(429), http_error(429)),
    *(StatusError(500), StatusError(503), http_error(502)),
    TimeoutError("the model does not answer"),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_a_failure_that_may_pass_is_recorded_as_retryable_and_tried_again(error: Exception) -> None:
    service = Service(error)
    read = tool(name="read", effect="read")(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report"):
        began_ms = memory.now_ms
        assert read("page") == {"sent": "page"}
        assert 400 <= memory.now_ms - began_ms <= 600
    first, failed, second, succeeded = tool_payloads(memory)
    assert isinstance(failed, FailedEvent)
    assert (failed.error.error_class, failed.try_number) == ("retryable", 1)
    assert failed.error.code
    assert f"{error}" in failed.error.message
    assert isinstance(first, ToolCallStarted)
    assert isinstance(second, ToolCallStarted)
    assert isinstance(succeeded, ToolCallSucceeded)
    assert [first.try_number, second.try_number] == [1, 2]
    assert memory.rejections() == []


def test_a_tool_whose_effect_is_not_declared_is_treated_as_one_that_writes() -> None:
    service = Service(TimeoutError("slow"))
    send = tool(name="send", deadline=5)(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(ToolCallUnresolved, match="may have taken effect"), session.run("report", run_id="r"):
            send("hello")
        memory.advance(6)
        assert session.resume_run("r").resume_plan().state == "paused"
    (started,) = tool_payloads(memory)
    assert isinstance(started, ToolCallStarted)
    assert (started.side_effect, started.queryable) == (True, False)
    assert len(service.calls) == 1


def test_a_tool_that_people_can_ask_says_so_in_its_record_and_waits_for_them() -> None:
    service = Service(TimeoutError("slow"))
    send = tool(name="send", effect="write", queryable=True, deadline=5)(service.call)
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(ToolCallUnresolved), session.run("report", run_id="r"):
            send("hello")
        memory.advance(6)
        with pytest.raises(ToolCallUnresolved, match="A person must decide"), session.resume_run("r"):
            send("hello")
    (started,) = tool_payloads(memory)
    assert isinstance(started, ToolCallStarted)
    assert (started.side_effect, started.queryable) == (True, True)
    assert len(service.calls) == 1


@pytest.mark.parametrize("error", [TimeoutError("sent and silent"), ModelTimeout("model m", 5)])
def test_a_tool_with_an_effect_is_not_called_again_for_a_call_in_it_that_may_have_taken_effect(
    error: Exception,
) -> None:
    client, _ = memory_client()
    calls: list[str] = []

    @tool(effect="write")
    def send_inner() -> None:
        raise error

    @tool(effect="write")
    def send_outer() -> None:
        calls.append("outer")
        send_inner()

    session = client.session(user_id="u")
    with pytest.raises(ToolCallUnresolved), session.run("work"):
        send_outer()
    assert calls == ["outer"]
