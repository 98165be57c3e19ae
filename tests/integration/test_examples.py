"""The examples as users run them: as processes, on a real broker and a processor."""

from pathlib import Path
from urllib.error import HTTPError

import pytest
from pydantic import SecretStr

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.events import (
    RunCompleted,
    RunStarted,
    SessionPaused,
    SessionResumed,
    StateUpdated,
    StepSucceeded,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
    UsageRecorded,
)
from tests.integration.examples_rig import END_S, ExamplesRig, end_of, session_of
from tests.integration.pipeline_rig import OPERATOR_TOKEN, TENANT, PipelineRig
from tests.support.waiting import wait_until


@pytest.fixture
def rig(pipeline: PipelineRig, tmp_path: Path) -> ExamplesRig:
    return ExamplesRig(pipeline, tmp_path)


def test_a_plain_agent_and_an_asyncio_agent_report_their_calls(rig: ExamplesRig) -> None:
    output = rig.run_example("plain_agent.agent", "How high is the Eiffel tower?")
    assert output.splitlines()[-1] == "330 m"
    events = rig.events(output)
    assert end_of(events) == "completed"
    payloads = [event.payload for event in events]
    assert [p.tool_name for p in payloads if isinstance(p, ToolCallSucceeded)] == ["look_up"]
    assert [p.model for p in payloads if isinstance(p, UsageRecorded)] == ["large", "large"]

    output = rig.run_example("asyncio_tools.agent", "Paris")
    events = rig.events(output)
    assert f"session {session_of(output)[:8]}; sunny in Paris" in output
    payloads = [event.payload for event in events]
    assert sorted(p.tool_name for p in payloads if isinstance(p, ToolCallStarted)) == [
        "fetch_weather",
        "read_timetable",
    ]
    assert sum(isinstance(p, ToolCallSucceeded) for p in payloads) == 2
    (run,) = (e for e in events if isinstance(e.payload, RunStarted))
    assert {e.envelope.run_id for e in events if isinstance(e.payload, ToolCallSucceeded | StepSucceeded)} == {
        run.envelope.run_id
    }
    assert sum(isinstance(p, RunCompleted) for p in payloads) == 1
    assert rig.rejections() == []


def test_a_killed_agent_goes_on_in_its_next_process(rig: ExamplesRig, tmp_path: Path) -> None:
    note = tmp_path / "session.txt"
    arguments = ("crash_and_restart.agent", note, "one", "two", "three")
    with rig.start_example(*arguments) as killed:
        assert killed.stdout is not None
        lines = [killed.stdout.readline() for _ in range(2)]
        killed.kill()
    assert lines[1] == "handled one\n"
    output = rig.run_example(*arguments)
    assert session_of(output) == session_of(lines[0])
    assert output.splitlines()[0].endswith(" done one")
    assert output.splitlines()[1:] == ["handled two", "handled three"]
    events = rig.events(output)
    assert end_of(events) == "completed"
    assert len({event.envelope.producer_id for event in events}) == 2
    assert not note.exists()
    assert rig.rejections() == []


def test_a_helper_works_on_the_session_of_another_process(rig: ExamplesRig) -> None:
    output = rig.run_example("second_process.agents")
    assert output.splitlines()[1] == "6 words, in version 2"
    events = rig.events(output)
    updates = [(e.envelope.agent_id, e.payload.new_version) for e in events if isinstance(e.payload, StateUpdated)]
    assert updates == [("counter", 2), ("editor", 3)]
    assert end_of(events) == "completed"
    assert rig.rejections() == []


def test_a_session_waits_for_a_person_and_goes_on_in_another_process(rig: ExamplesRig) -> None:
    asked = rig.run_example("pause_for_person.agent", "ask", 1200)
    answered = rig.run_example("pause_for_person.agent", "answer", session_of(asked), "yes")
    assert answered == "resumed with 1200 in epoch 2\n"
    events = rig.events(asked)
    kinds = [type(event.payload) for event in events]
    assert kinds.index(SessionPaused) < kinds.index(SessionResumed)
    assert end_of(events) == "completed"
    asked = rig.run_example("pause_for_person.agent", "ask", 5000)
    rig.run_example("pause_for_person.agent", "answer", session_of(asked), "no")
    assert end_of(rig.events(asked)) == "cancelled"
    assert rig.rejections() == []


def test_an_agent_asks_and_an_operator_answers_or_none_in_time(rig: ExamplesRig) -> None:
    assert rig.run_example("pause_for_person.approval", 1200, 1).splitlines()[1] == "expired by the clock in epoch 2"
    settings = OperatorSettings(control_url=rig.pipeline.control_url, operator_token=SecretStr(OPERATOR_TOKEN))
    with rig.start_example("pause_for_person.approval", 1200) as asking:
        assert asking.stdout is not None
        session_id = session_of(asking.stdout.readline())

        def is_asked() -> bool:
            try:
                return rig.pipeline.ask(session_id)["question"] is not None
            except HTTPError:  # its creation is not judged yet
                return False

        wait_until(is_asked, 120, "the question to be open")
        answered = ControlApiClient(settings).act_on_session(session_id, TENANT, "approve", {}, "key")
        assert answered["reason_code"] == "approved"
        assert asking.communicate(timeout=END_S)[0] == "approved by ops in epoch 2\n"
    assert rig.rejections() == []


def test_an_agent_that_fails_tells_why(rig: ExamplesRig) -> None:
    """It comes last: its tool may end later than its session, and is rejected then."""
    with rig.start_example("asyncio_tools.agent", "Atlantis") as failing:
        output, _ = failing.communicate(timeout=END_S)
    assert failing.returncode == 1
    events = rig.events(output)
    assert end_of(events) == "unrecoverable"
    (failed,) = (event.payload for event in events if isinstance(event.payload, ToolCallFailed))
    assert failed.error.code == "LookupError"
