"""The ported agents as processes that are killed and started again, on a real broker."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from pydantic import SecretStr

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.local.ports import LOOPBACK, free_port
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.codec import Event
from sessionary.schemas.events import MessageAppended, RunCompleted, ToolCallStarted
from sessionary.schemas.records import RejectedEvent
from tests.integration.examples_rig import END_S, ExamplesRig
from tests.integration.pipeline_rig import OPERATOR_TOKEN, TENANT, PipelineRig
from tests.style.project import ROOT
from tests.support import read_events, read_records
from tests.support.waiting import wait_until


@pytest.fixture
def rig(pipeline: PipelineRig, tmp_path: Path) -> ExamplesRig:
    return ExamplesRig(pipeline, tmp_path)


def sent(rig: ExamplesRig) -> list[Event]:
    """Return the events, each once: the spool of a killed process may send one again."""
    events = {e.envelope.event_id: e for e in read_events(rig.pipeline.kafka) if isinstance(e, Event)}
    return list(events.values())


def test_a_loop_that_died_after_it_booked_books_nothing_twice(rig: ExamplesRig) -> None:
    with rig.start_program("tests.support.dying_loop", "Paris") as dying:
        dying.communicate(timeout=END_S)
    assert dying.returncode == -signal.SIGKILL
    output = rig.run_example("ported.loop", "Paris")
    calls = Counter(e.payload.tool_name for e in sent(rig) if isinstance(e.payload, ToolCallStarted))
    assert calls == {"get_weather": 1, "book_hotel": 1}
    assert output.startswith("Booked a hotel in Paris: ")


def test_a_graph_that_died_while_a_person_was_asked_takes_the_answer(rig: ExamplesRig) -> None:
    settings = OperatorSettings(control_url=rig.pipeline.control_url, operator_token=SecretStr(OPERATOR_TOKEN))
    person = ControlApiClient(settings)
    with rig.start_example("ported.graph", "order 7") as waiting:
        try:
            wait_until(lambda: person.list_waiting(TENANT, 1)[0] != [], 60, "the question")
        finally:
            waiting.kill()
    (question,), _ = person.list_waiting(TENANT, 1)
    person.act_on_session(str(question["session_id"]), TENANT, "approve", {}, "key")
    assert "refunded 1200" in rig.run_example("ported.graph", "order 7")
    events = sent(rig)
    assert sum(isinstance(e.payload, RunCompleted) for e in events) == 1
    rejected = read_records(rig.pipeline.kafka, rig.pipeline.kafka.topics.rejected)
    assert [r.reason for r in rejected if isinstance(r, RejectedEvent)] == []


class ChatService:
    """The ported service in a process of uvicorn."""

    def __init__(self, rig: ExamplesRig) -> None:
        self._port = free_port()
        argv = [sys.executable, "-m", "uvicorn", "examples.ported.chat:app", "--port", str(self._port)]
        self._process = subprocess.Popen(argv, env={**os.environ, **rig.variables}, cwd=ROOT)

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._port}/openapi.json", timeout=10) as page:
                return bool(page.status == 200)
        except OSError:
            return False

    def say(self, text: str) -> str:
        body = json.dumps({"chat_id": "thread 42", "user_id": "ada", "text": text}).encode()
        url, headers = f"http://{LOOPBACK}:{self._port}/chat", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=END_S) as answer:
            return str(json.load(answer)["text"])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def test_a_chat_goes_on_in_another_process_of_its_service(rig: ExamplesRig) -> None:
    answers: list[str] = []
    for texts in (("one", "two"), ("three",)):
        service = ChatService(rig)
        try:
            wait_until(service.is_up, 60, "the service to answer")
            answers += map(service.say, texts)
        finally:
            service.kill()
    assert answers == ["answer 1", "answer 3", "answer 5"]
    turns = [(e.payload.role, e.payload.content) for e in sent(rig) if isinstance(e.payload, MessageAppended)]
    assert [text for role, text in turns if role == "user"] == ["one", "two", "three"]
    assert len({e.envelope.session_id for e in sent(rig) if isinstance(e.payload, MessageAppended)}) == 1
