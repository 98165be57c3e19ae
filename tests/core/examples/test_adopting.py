"""The blocks of docs/learn/adopting.md: each works alone, and gives what the page says."""

import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from examples.durable_run import agent as durable_run
from examples.research import agent as research
from examples.support import agent as support
from examples.trading import agent as trading
from examples.workflow import workflow
from sessionary.producers import MessageView
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import ArtifactCompleted, StepFailed, StepSkipped, StepSucceeded, ToolCallFailed
from tests.style.project import ROOT
from tests.support.waiting import wait_until

PAGE = (ROOT / "docs" / "learn" / "adopting.md").read_text("utf-8")
LINES_MAX = 15


def block_of(section: str) -> str:
    """Return the only block of Python in a section of the page."""
    (text,) = re.findall(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert isinstance(block, str)
    return block


class Reader:
    """Who pastes a block of the page into an agent."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.client, self.memory = memory_client()
        self.session = self.client.session(user_id="u1")

    def paste(self, section: str, **own: Any) -> dict[str, Any]:
        """Run a block beside functions of the reader's own; return the names that it defines."""
        names: dict[str, Any] = {"load": self._load, "write": self._write, "send": self._send, **own}
        exec(compile(block_of(section), "docs/learn/adopting.md", "exec"), names)
        return names

    def applied(self, kind: type[Any]) -> list[Any]:
        judged = (verdict for verdict in self.memory.verdicts() if verdict.reason is None)
        return [verdict.event.payload for verdict in judged if isinstance(verdict.event.payload, kind)]

    def _load(self, month: str) -> str:
        self.calls.append(f"load {month}")
        return "long " * 1_000

    def _write(self, sales: str) -> str:
        self.calls.append("write")
        if self.calls.count("write") == 1:
            raise TimeoutError("the model does not answer")
        return f"{len(sales)} characters"

    def _send(self, address: str, text: str, key: str | None) -> str:
        self.calls.append(f"send {address} {text} {key}")
        return "sent"


@pytest.fixture
def reader() -> Iterator[Reader]:
    found = Reader()
    yield found
    found.client.close()
    assert [refusal.reason for refusal in found.memory.rejections()] in ([], ["call_succeeded"])


def test_every_block_is_short() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(blocks) == 7
    assert [block for block in blocks if len(block.splitlines()) > LINES_MAX] == []


def test_a_session_is_followed_to_its_end(reader: Reader) -> None:
    shown: list[tuple[int, str, str]] = []
    names = reader.paste("Follow a session from another service", show=lambda *view: shown.append(view))
    watching = threading.Thread(target=names["watch"], args=(reader.client, reader.session.session_id))
    watching.start()
    wait_until(lambda: shown, 60, "the present state")
    reader.session.update_state({"month": 10})
    wait_until(lambda: shown[-1] == (2, "Active", '{"month":10}'), 60, "the change")
    reader.session.close()
    watching.join(60)
    assert not watching.is_alive()
    assert shown[-1][1] == "Terminated"
    assert [version for version, _, _ in shown] == sorted(version for version, _, _ in shown)


def test_recording_alone_says_what_was_done_and_what_failed(reader: Reader) -> None:
    report = reader.paste("1. Record runs and steps")["report"]
    with pytest.raises(TimeoutError):
        report(reader.session, "2026-10")
    assert report(reader.session, "2026-10") == "5000 characters"
    assert reader.calls == ["load 2026-10", "write", "load 2026-10", "write"]
    assert [step.name for step in reader.applied(StepSucceeded)] == ["load", "load", "write"]
    (failed,) = reader.applied(StepFailed)
    assert (failed.name, failed.error.message) == ("write", "the model does not answer")


def test_each_effect_of_a_loop_has_a_key_of_its_own(reader: Reader) -> None:
    send_mail = reader.paste("2. Give each effect a key")["send_mail"]
    with reader.session:
        assert [send_mail("ann", "hello"), send_mail("ann", "hello")] == ["sent", "sent"]
    keys = [call.split()[-1] for call in reader.calls]
    assert [len(key) for key in keys] == [64, 64]
    assert keys[0] != keys[1]


def test_resume_alone_goes_on_at_the_step_that_failed(reader: Reader) -> None:
    report = reader.paste("3. Resume")["report"]
    with pytest.raises(TimeoutError):
        report(reader.session, "2026-10")
    assert report(reader.session, "2026-10") == "5000 characters"
    assert reader.calls == ["load 2026-10", "write", "write"]
    assert [step.name for step in reader.applied(StepSkipped)] == ["load"]
    assert report(reader.session, "2026-10") == "5000 characters"
    assert len(reader.calls) == 3


def test_artifacts_alone_keep_a_message_small(reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = reader.paste("4. Keep large results outside")
    message = names["load_pages"](reader.session, "2026-10")
    assert len(str(message)) < 250
    assert names["library"].load(message["artifact_ref"]) == b"long " * 1_000
    assert [done.size_bytes for done in reader.applied(ArtifactCompleted)] == [5_000]


def test_retry_alone_lets_failures_pass(reader: Reader) -> None:
    names: dict[str, Any] = {}

    def ask(question: str) -> str:
        reader.calls.append(question)
        if len(reader.calls) < 3:
            raise names["Busy"]("come back later")
        if question == "what?":
            raise ValueError("no such question")
        return "an answer"

    names = reader.paste("5. Retry transient failures", ask=ask)
    with reader.session:
        assert names["search"]("why?") == "an answer"
        assert reader.calls == ["why?"] * 3
        with pytest.raises(ValueError, match="no such question"):
            names["search"]("what?")
    assert reader.calls == ["why?"] * 3 + ["what?"]
    classes = [failed.error.error_class for failed in reader.applied(ToolCallFailed)]
    assert classes == ["retryable", "retryable", "fatal"]


def test_a_handler_that_was_stateless_sees_the_turns_before(reader: Reader) -> None:
    histories: list[list[tuple[str, str | None]]] = []

    def ask(turns: Sequence[MessageView]) -> str:
        histories.append([(turn.role, turn.content) for turn in turns])
        return f"answer {len(histories)}"

    chat = reader.paste("From stateless to stateful", ask=ask)["chat"]
    begun = reader.client.session(user_id="u1")
    other, _ = memory_client(memory=reader.memory)
    assert chat(reader.client, begun.session_id, "u1", "hello") == "answer 1"
    assert chat(other, begun.session_id, "u1", "and now?") == "answer 2"
    assert histories == [
        [("user", "hello")],
        [("user", "hello"), ("assistant", "answer 1"), ("user", "and now?")],
    ]
    assert len(begun.conversation.read()) == 4


def test_the_sheets_name_the_checkpoints_of_the_examples() -> None:
    (line,) = re.findall(r"^\| 3\. checkpoints \|(.*)\|$", PAGE, re.M)
    sheets = [re.findall(r"`(\w+)`", cell) for cell in line.split("|")]
    plans = [module.PLAN for module in (workflow, trading, support, research)]
    assert sheets[:4] == plans
    assert sheets[4] == plan_of_durable_run()


def plan_of_durable_run() -> list[str]:
    client, memory = memory_client()
    with client.session(user_id="u1") as session:
        durable_run.answer_ticket(session, "ticket-1")
    payloads = [event.payload for event in memory.events()]
    return [payload.name for payload in payloads if isinstance(payload, StepSucceeded)]
