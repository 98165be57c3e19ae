"""Text of agents that UTF-8 cannot hold reaches the events, and never the agent as an error."""

from collections.abc import Iterator
from typing import Any

import pytest

from sessionary.producers import CleanupAction, CleanupRequest, EncodeError, SessionClient
from sessionary.producers.process.safe_text import error_text, replace_in_value, replace_surrogates
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import (
    ResourcesReleased,
    SessionActivity,
    SessionErrored,
    SessionTerminated,
    StateUpdated,
)
from sessionary.schemas.ids import content_hash

BAD = "tool said \ud83d"
MENDED = "tool said \ufffd"


class Unprintable(Exception):
    """An exception of the agent that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.fixture
def pair() -> Iterator[tuple[SessionClient, InMemoryTransport]]:
    client, memory = memory_client()
    with client:
        yield client, memory


def request_for(session_id: str, cleanup_id: str = "c1") -> CleanupRequest:
    return CleanupRequest(cleanup_id, "acme", session_id, "service", 1, "inactive", "x", ["release"], 1)


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ("plain é 😀", "plain é 😀"),
        (BAD, MENDED),
        ("\ud83dx\ude00", "\ufffdx\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("", ""),
    ],
)
def test_lone_surrogates_are_replaced_and_pairs_become_their_character(text: str, mended: str) -> None:
    assert replace_surrogates(text) == mended
    assert mended.encode().decode() == mended


def test_values_are_mended_at_any_depth_and_others_stay() -> None:
    given = {BAD: [BAD, (BAD, 1), SessionActivity(BAD, None)], "n": 1.5}
    assert replace_in_value(given) == {MENDED: [MENDED, (MENDED, 1), SessionActivity(MENDED, None)], "n": 1.5}


def test_every_text_of_an_event_is_accepted(pair: tuple[SessionClient, InMemoryTransport]) -> None:
    client, memory = pair
    session = client.session(user_id=BAD, state={BAD: BAD})
    session.activity("llm", BAD)
    session.info(BAD)
    session.progress(1.0, message=BAD)
    session.usage(model=BAD)
    session.update_state({"said": [BAD]})
    session.emit(SessionActivity(BAD, BAD), run_id=BAD, actor=BAD, traceparent=BAD)
    session.pause(BAD)
    session.resume(BAD)
    session.cancel(BAD)
    assert session.state == {"said": [MENDED]}
    assert {event.envelope.user_id for event in memory.events()} == {MENDED}
    assert memory.records()[-1].traceparent is None
    updates = [event.payload for event in memory.events() if isinstance(event.payload, StateUpdated)]
    last = memory.events()[-1].payload
    assert isinstance(last, SessionTerminated)
    assert last.message == MENDED
    assert last.snapshot is not None
    assert last.snapshot.content_hash == content_hash(updates[-1].state_json)


@pytest.mark.parametrize(
    ("raised", "said"), [(ValueError(BAD), MENDED), (Unprintable(), "(its text cannot be made: RuntimeError)")]
)
def test_a_failed_agent_s_error_and_end_are_sent(
    raised: Exception, said: str, pair: tuple[SessionClient, InMemoryTransport]
) -> None:
    client, memory = pair
    with pytest.raises(type(raised)), client.session(user_id="u") as session:
        raise raised
    assert session.local_state == "Terminated"
    errored, ended = [event.payload for event in memory.events()[-2:]]
    assert isinstance(errored, SessionErrored)
    assert errored.error.message == said
    assert isinstance(ended, SessionTerminated)
    assert ended.message == error_text(raised)


@pytest.mark.parametrize("raised", [ValueError(BAD), Unprintable(), SystemExit(BAD)])
def test_a_clean_up_handler_that_raises_is_answered(
    raised: BaseException, pair: tuple[SessionClient, InMemoryTransport]
) -> None:
    client, memory = pair

    def handler(_: CleanupRequest) -> None:
        raise raised

    client.on_cleanup(handler)
    session = client.session(user_id="u")
    receipt = memory.request_cleanup(request_for(session.session_id))
    assert receipt is not None
    assert receipt.error is None
    answer = memory.events()[-1].payload
    assert isinstance(answer, ResourcesReleased)
    assert [(action.done, action.detail) for action in answer.actions] == [(False, error_text(raised))]


@pytest.mark.parametrize(
    ("given", "done"),
    [
        (CleanupAction("release", done=True, at=1, detail=BAD), True),
        (CleanupAction(BAD, done=True, at=1), False),
        (CleanupAction("release", done=True, at=1 << 70), False),
    ],
)
def test_whatever_a_clean_up_handler_returns_is_answered(
    given: CleanupAction, done: bool, pair: tuple[SessionClient, InMemoryTransport]
) -> None:
    client, memory = pair
    client.on_cleanup(lambda _: [given])
    session = client.session(user_id="u")
    receipt = memory.request_cleanup(request_for(session.session_id))
    assert receipt is not None
    answer = memory.events()[-1].payload
    assert isinstance(answer, ResourcesReleased)
    assert answer.actions[0].done == done


def test_what_is_no_text_at_all_is_still_refused(pair: tuple[SessionClient, InMemoryTransport]) -> None:
    client, _ = pair
    wrong: Any = object()
    with pytest.raises(EncodeError):
        client.session(user_id="u").activity(wrong, BAD)
