"""A service that asks to wait before the next try is asked again then, or not at all."""

import urllib.error
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from typing import Any

import pytest

from sessionary.producers import Limits, Retry, TookEffect, ToolCallUnresolved, tool
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import ToolCallFailed as FailedEvent
from tests.core.producers.durable.test_tool import Service, tool_payloads


def asks(wait: str, status: int = 429) -> urllib.error.HTTPError:
    headers = Message()
    headers["Retry-After"] = wait
    return urllib.error.HTTPError("http://x", status, "said", headers, None)


@pytest.mark.parametrize("status", [429, 503])
def test_the_next_try_is_made_when_the_service_wants_it(status: int) -> None:
    service = Service(asks("20", status), asks("0", status))
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        began_ms = memory.now_ms
        assert tool(name="read", effect="read")(service.call)("page") == {"sent": "page"}
    assert memory.now_ms - began_ms == 20_000 + 1_000  # then its own wait, which is longer
    assert memory.rejections() == []


def test_a_date_counts_from_the_date_of_the_answer() -> None:
    error, now = asks(format_datetime(datetime.now(UTC) + timedelta(days=9), usegmt=True)), datetime.now(UTC)
    error.headers["Date"] = format_datetime(now + timedelta(days=9, seconds=-30), usegmt=True)
    service = Service(error)
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        began_ms = memory.now_ms
        tool(name="read", effect="read")(service.call)("page")
    assert 29_000 <= memory.now_ms - began_ms <= 31_000


_LIMITS = Limits()


def failure_of(service: Service, limits: Limits = _LIMITS, **declared: Any) -> tuple[Exception, list[str], int]:
    """Let a read fail; return its error, the recorded texts, and how long it took in ms."""
    client, memory = memory_client()
    with client, client.session(user_id="u", limits=limits):
        began_ms = memory.now_ms
        with pytest.raises(urllib.error.HTTPError) as raised:
            tool(name="read", effect="read", **declared)(service.call)("page")
        took_ms = memory.now_ms - began_ms
    texts = [payload.error.message for payload in tool_payloads(memory) if isinstance(payload, FailedEvent)]
    assert memory.rejections() == []
    return raised.value, texts, took_ms


@pytest.mark.parametrize(
    ("declared", "limits", "why"),
    [
        ({}, Limits(), "the last try may begin 300 s after the first failure"),
        ({"retry": Retry(deadline_ms=60_000)}, Limits(), "the last try may begin 60 s after the first failure"),
        ({"retry": Retry(deadline_ms=10**9)}, Limits(idle_ms=400_000), "the session's idle_ms is 400 s"),
    ],
    ids=["default", "own", "idle"],
)
def test_a_wait_that_does_not_fit_fails_at_once_and_says_why(
    declared: dict[str, Any], limits: Limits, why: str
) -> None:
    service = Service(asks("3600"))
    error, (text,), took_ms = failure_of(service, limits, **declared)
    said = f"not tried again: the service asks for a wait of 3600 s, and {why}"
    assert error.__notes__ == [said]
    assert text == f"HTTP Error 429: said ({said})"
    assert (len(service.calls), took_ms) == (1, 0)


def test_the_deadline_counts_from_the_first_failure() -> None:
    service = Service(asks("100"), asks("100"), asks("100"), asks("100"))
    _, texts, took_ms = failure_of(service)
    assert (len(service.calls), took_ms) == (4, 300_000)
    assert ["not tried again" in text for text in texts] == [False, False, False, True]


def test_own_waits_end_by_the_deadline_too() -> None:
    service = Service(*(asks("0") for _ in range(9)))
    error, _, took_ms = failure_of(service, retry=Retry(retries=50, deadline_ms=4_000))
    assert (len(service.calls), took_ms) == (4, 500 + 1_000 + 2_000)
    assert error.__notes__ == [
        "not tried again: the next wait is 4 s, and the last try may begin 4 s after the first failure"
    ]


def test_the_last_try_says_nothing_of_time() -> None:
    error, texts, _ = failure_of(Service(asks("3600")), retry=Retry(retries=0))
    assert texts == ["HTTP Error 429: said"]
    assert not hasattr(error, "__notes__")


def test_a_write_that_may_have_taken_effect_waits_for_nothing() -> None:
    service = Service(asks("20"))
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        began_ms = memory.now_ms
        with pytest.raises(ToolCallUnresolved):
            tool(name="send", effect="write", deadline=30)(service.call)("page")
        assert (len(service.calls), memory.now_ms) == (1, began_ms)


@pytest.mark.parametrize(("wait", "is_asked"), [("40", True), ("4000", False)])
def test_a_query_is_asked_again_when_the_service_wants_it(wait: str, is_asked: bool) -> None:
    answers = [asks(wait), TookEffect("done")]

    def query(key: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    send = tool(name="send", effect="write", query=query, deadline=300)(Service(TimeoutError("slow")).call)
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        began_ms = memory.now_ms
        if is_asked:
            assert send("page") == "done"
            assert memory.now_ms - began_ms == 40_000
        else:
            with pytest.raises(ToolCallUnresolved, match="asks for a wait of 4000 s"):
                send("page")
            assert memory.now_ms == began_ms
    assert len(answers) == (0 if is_asked else 1)
