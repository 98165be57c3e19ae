"""SIGTERM and Ctrl-C reach real processes that wait for a person, or are in a turn."""

import signal
import subprocess
import uuid
from collections import Counter
from pathlib import Path

import pytest
from pydantic import SecretStr

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.codec import Event
from sessionary.schemas.events import SessionPaused
from tests.integration.examples_rig import END_S, ExamplesRig
from tests.integration.pipeline_rig import OPERATOR_TOKEN, TENANT, PipelineRig
from tests.support import read_events
from tests.support.waiting import wait_until

_AGENT = "tests.support.signalled_agent"
_ASKING = [(place, sent) for place in ("step", "outside", "asyncio") for sent in (signal.SIGTERM, signal.SIGINT)]
# Python ends itself by the signal after a KeyboardInterrupt.
_CODES = {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGINT: -signal.SIGINT}


@pytest.fixture
def rig(pipeline: PipelineRig, tmp_path: Path) -> ExamplesRig:
    return ExamplesRig(pipeline, tmp_path)


def stop(process: "subprocess.Popen[str]", sent: signal.Signals) -> None:
    """Send a signal to a process, and wait for its end."""
    process.send_signal(sent)
    output, _ = process.communicate(timeout=END_S)
    assert (process.returncode, "answer" in output) == (_CODES[sent], False), output


def test_a_signal_in_the_wait_for_a_person_leaves_the_question_and_its_answer_is_taken(rig: ExamplesRig) -> None:
    person = ControlApiClient(
        OperatorSettings(control_url=rig.pipeline.control_url, operator_token=SecretStr(OPERATOR_TOKEN))
    )
    ids = {case: str(uuid.uuid4()) for case in _ASKING}
    agents = {case: rig.start_program(_AGENT, session_id, case[0]) for case, session_id in ids.items()}
    try:
        wait_until(lambda: len(person.list_waiting(TENANT, 10)[0]) == len(ids), 120, "each question")
        for (_, sent), agent in agents.items():
            stop(agent, sent)
    finally:
        for agent in agents.values():
            agent.kill()
    states = {case: rig.pipeline.ask(session_id)["state"] for case, session_id in ids.items()}
    assert states == dict.fromkeys(ids, "Paused")
    for question in person.list_waiting(TENANT, 10)[0]:
        person.act_on_session(str(question["session_id"]), TENANT, "approve", {}, str(question["question_id"]))
    outputs = {case: rig.run_program(_AGENT, session_id, case[0]) for case, session_id in ids.items()}
    assert outputs == dict.fromkeys(ids, "answer True\n")
    events = {e.envelope.event_id: e for e in read_events(rig.pipeline.kafka) if isinstance(e, Event)}.values()
    asked = Counter(e.envelope.session_id for e in events if isinstance(e.payload, SessionPaused))
    assert asked == dict.fromkeys(ids.values(), 1)
    assert rig.rejections() == []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_turn_ends_the_turn_and_the_next_process_takes_the_next_one(
    rig: ExamplesRig, sent: signal.Signals
) -> None:
    session_id = str(uuid.uuid4())
    agent = rig.start_program(_AGENT, session_id, "turn")
    try:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "in turn\n"
        stop(agent, sent)
    finally:
        agent.kill()
    session = rig.pipeline.ask(session_id)
    assert (session["state"], session["phase"]) == ("Active", "waiting")
    assert rig.run_program(_AGENT, session_id, "turn") == "turn 2\n"
    assert rig.rejections() == []
