"""Idempotency keys of tool calls, and other names by which recorded work is found again."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from sessionary.producers import Run, Session, tool
from sessionary.producers.durable.call_keys import checked_key, idempotency_key
from sessionary.producers.errors import Invalid
from sessionary.producers.testing import memory_client

CALL = {
    "tenant_id": "acme",
    "run_id": "run-1",
    "step_name": "notify",
    "tool_name": "send_message",
    "arguments": {"channel": "#ops", "text": "é", "parts": [1, 2.5]},
}


def key_of(**changed: Any) -> str:
    return idempotency_key(**{**CALL, **changed})


def test_a_key_is_the_hash_of_one_text() -> None:
    text = (
        '{"args":{"channel":"#ops","parts":[1,2.5],"text":"é"},"run_id":"run-1","step_name":"notify",'
        '"tenant_id":"acme","tool_name":"send_message"}'
    )
    assert key_of() == hashlib.sha256(text.encode()).hexdigest()


def test_known_calls_have_known_keys() -> None:
    assert key_of() == "9a6e9548ebfa9f7e27cc82a123db9fcb51b5b326c8d6e87366f3731d06f5c515"
    assert key_of(run_id=None, step_name=None) == "9abfc5bbf97f2e2ae58bc8528f8ab0acc6cfb97db87affbf77dd6df234d68c85"


def test_the_order_of_arguments_does_not_matter() -> None:
    assert key_of(arguments={"parts": [1, 2.5], "text": "é", "channel": "#ops"}) == key_of()


@pytest.mark.parametrize("part", CALL)
def test_each_part_makes_another_key(part: str) -> None:
    assert key_of(**{part: {"channel": "#ops"} if part == "arguments" else "other"}) != key_of()


def test_arguments_that_json_cannot_hold_are_invalid() -> None:
    with pytest.raises(Invalid, match="type object"):
        key_of(arguments={"text": object()})


@pytest.mark.parametrize("key", ["", "k" * 257, 7, None])
def test_a_key_of_the_business_is_a_short_text(key: object) -> None:
    with pytest.raises(Invalid, match="send_message"):
        checked_key(key, "send_message")
    assert checked_key("order-7", "send_message") == "order-7"


@tool(effect="write", key=lambda name: name)
def send_file(name: str) -> str:
    return name


BAD_NAME = "report \udcff"  # of a file, as Python reads a name that is no UTF-8


@pytest.mark.parametrize(
    ("work", "what"),
    [
        (lambda session: session.run("send", run_id=BAD_NAME), "run_id"),
        (lambda session: session.resume_run(BAD_NAME), "run_id"),
        (lambda session: session.save_checkpoint(BAD_NAME, 1), "the name of an operation"),
        (lambda session: session.load_checkpoint(BAD_NAME), "the name of an operation"),
        (lambda session: in_run(session, lambda run: run.step(BAD_NAME, print)), "the name of a step"),
        (lambda session: in_run(session, lambda run: run.step("send", print, key=BAD_NAME)), "the key of a step"),
        (lambda session: in_run(session, lambda run: list(run.items([1], name=BAD_NAME))), "the name of a list"),
        (lambda session: in_run(session, lambda run: send_file(BAD_NAME)), "the key of the tool send_file"),
    ],
)
def test_work_has_no_name_that_an_event_cannot_hold(work: Callable[[Session], object], what: str) -> None:
    """A resumed run would not find its work by it, and do it again; two such names would be one."""
    client, memory = memory_client()
    with client, client.session(user_id="u1") as session:
        sent = len(memory.events())
        with pytest.raises(Invalid, match=rf"{what} is 'report .*lone surrogate.*os.fsencode"):
            work(session)
        assert {event.envelope.event_type for event in memory.events()[sent:]} <= {
            "run_started",
            "run_running",
            "run_failed",
        }


def in_run(session: Session, work: Callable[[Run], object]) -> object:
    with session.run("send") as run:
        return work(run)


def test_a_list_of_names_that_are_no_utf_8_is_resumed() -> None:
    client, _ = memory_client()
    names, done = ["a \udcff", "b \udcfe", "c"], list[str]()

    def work(session: Session, *, fails: bool) -> None:
        with session.run("send", run_id="r1", resume=True) as run:
            for name in run.items(names, every=2):
                if name == "c" and fails:
                    raise ConnectionError("the line is down")
                done.append(name)

    with client, client.session(user_id="u1") as session:
        with pytest.raises(ConnectionError):
            work(session, fails=True)
        work(session, fails=False)
    assert done == names
