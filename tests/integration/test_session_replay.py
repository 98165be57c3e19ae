"""A session that a killed process left is replayed by another one, which executes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sessionary.producers import Invalid, Rejected, Session, SessionClient, SessionLost
from sessionary.producers.control.kafka_record import KafkaRecords
from sessionary.producers.replay.errors import PointNotFound
from sessionary.producers.replay.simulate import simulate
from sessionary.producers.run_ports import LogEntry
from sessionary.schemas.ids import SessionKey
from tests.integration.pipeline_rig import OTHER, OTHER_TOKEN, TENANT, TOKEN, PipelineRig
from tests.style.project import ROOT
from tests.support import environment

WAIT_S = 180.0
# Each effect leaves a line. The process is killed once it has printed its snapshot.
AGENT = """
import json, sys
from pathlib import Path
from sessionary.producers import SessionClient, tool, traced
folder, session_id, point = Path(sys.argv[1]), *sys.argv[2:]

def note(name):
    with open(folder / "effects", "a") as effects:
        effects.write(name + "\\n")

@tool(effect="read")
def search(query):
    note("search")
    return [query, 1]

@tool(effect="write")
def book(seat):
    note("book")
    return "booked " + seat

@traced("llm", capture=True)
def ask_model(prompt):
    note("ask_model")
    return prompt.upper()

def agent(session, tell):
    session.message("user", "a seat please")
    with session.llm("m-1") as call:
        answer = ask_model(f"{search('seats')} {search('seats')} {session.random()} {session.now()}")
        call.tokens_in, call.tokens_out = 7, 3
    seat = book("12a")
    session.message("assistant", answer)
    session.update_state({"seat": seat})
    snapshot_id = session.snapshot()
    client.flush()
    tell("snapshot", snapshot_id)
    session.message("user", "one more")
    book("12b")

def say(*words):
    print(*words, flush=True)
    if words[0] == "snapshot":
        sys.stdin.readline()

with SessionClient(tenant_id="acme", service_id="billing", agent_id="a") as client:
    if not point:
        with client.session(user_id="u", state={"seat": None}) as session:
            say("session", session.session_id)
            agent(session, say)
    else:
        with client.replay(session_id, at=point) as replay, replay.session() as session:
            agent(session, lambda *words: None)
        turns = [[turn.role, turn.content] for turn in replay.past.conversation(session_id)]
        outcome = [replay.counts._asdict(), replay.difference, replay.is_reached, client.counters.sent]
        print(json.dumps([*outcome, replay.past.attach(session_id).state, turns, replay.record.tokens]))
"""


def run_agent(pipeline: PipelineRig, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    parts = {"control_url": pipeline.control_url, "api_token": TOKEN, "spool_dir": str(folder / "spool")}
    command = [sys.executable, "-c", AGENT, str(folder), *arguments]
    env = {**os.environ, **environment(pipeline.kafka, **parts)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_word(process: "subprocess.Popen[str]", name: str) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line[:1] == [name], line
    return line[1]


def roll_back_far(session: Session) -> str:
    """Roll back to a snapshot of 18 before, whose id is returned, and to an unknown one."""
    session.update_state({"n": 1})
    oldest = session.snapshot()
    for number in range(2, 20):
        session.update_state({"n": number})
        session.snapshot()
    assert session.rollback(oldest) == session.sync().version == 21
    assert session.state == {"n": 1}
    with pytest.raises(Rejected, match="has no snapshot snap_0123456789ab: the processor keeps the last 16"):
        session.rollback("snap_0123456789ab")
    return oldest


def test_any_snapshot_is_a_beginning_and_a_target_also_after_the_end(pipeline: PipelineRig, tmp_path: Path) -> None:
    """R-003-01 and C-34 of a snapshot that is neither the last nor one of those that are kept."""
    settings = pipeline.client_settings(tmp_path, "owner")
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        with client.session(user_id="u", state={"n": 0}) as session:
            oldest = roll_back_far(session)
        with client.replay(session) as replay, replay.session() as again:
            roll_back_far(again)
        assert (replay.difference, replay.counts.executed) == (None, 0)
        with client.session(user_id="u", from_session=session.session_id, from_snapshot=oldest) as second:
            assert second.sync().state == "Active"
            assert second.state == {"n": 1}
        with pytest.raises(Invalid, match="has no snapshot snap_0123456789ab"):
            client.session(user_id="u", from_session=session.session_id, from_snapshot="snap_0123456789ab")


def simulate_another_seat(pipeline: PipelineRig, session_id: str) -> None:
    """R-004-56: swap one tool's result off line; the stored log stays as it is."""
    log, key = KafkaRecords(pipeline.kafka), SessionKey(TENANT, session_id)

    def stored() -> list[LogEntry]:
        return [entry for batch in log.read_log(key, WAIT_S) for entry in batch if entry.key is not None]

    before = stored()
    (booked,) = [entry for entry in before if b'"booked 12a"' in entry.value and b"tool_call_succeeded" in entry.value]
    found = simulate(log, key, f"{booked.offset}", "booked 1z", WAIT_S)
    assert found.first is not None
    assert (found.first.offset, found.first.event_type) == (booked.offset, "tool_call_succeeded")
    assert ("booked 12a" in found.first.recorded, "booked 1z" in found.first.simulated) == (True, True)
    assert stored() == before


def test_another_process_replays_a_killed_session_from_its_snapshot_and_executes_nothing(
    pipeline: PipelineRig, tmp_path: Path
) -> None:
    """R-003-43: call the tool, interrupt, replay from the snapshot's id, get the same state."""
    with run_agent(pipeline, tmp_path, "", "") as agent:
        session_id, snapshot_id = read_word(agent, "session"), read_word(agent, "snapshot")
        agent.kill()
    effects = (tmp_path / "effects").read_text().split()
    assert effects == ["search", "search", "ask_model", "book"]
    with run_agent(pipeline, tmp_path, session_id, snapshot_id) as replayed:
        output, _ = replayed.communicate(timeout=WAIT_S)
    assert replayed.returncode == 0
    assert (tmp_path / "effects").read_text().split() == effects  # no counter has moved
    counts, difference, is_reached, sent, state, turns, tokens = json.loads(output)
    # `book` once, the model, and both equal calls of `search` inside its block.
    assert counts == {"served": 4, "missed": 0, "blocked": 0, "executed": 0}
    assert (difference, is_reached, sent) == (None, True, 0)
    settings = pipeline.client_settings(tmp_path, "reader")
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        session = client.attach(session_id)
        assert state == session.state == {"seat": "booked 12a"}
        assert turns == [[turn.role, turn.content] for turn in client.conversation(session_id)]
        assert (len(turns), tokens) == (2, 10)
        with pytest.raises(PointNotFound, match="Snapshot snap_0123456789ab not found"):
            client.replay(session_id, at="snap_0123456789ab").__enter__()
        session.close()
        client.flush()
        simulate_another_seat(pipeline, session_id)
    settings = settings.model_copy(update={"api_token": OTHER_TOKEN, "spool_dir": tmp_path / "other"})
    with (
        SessionClient(tenant_id=OTHER, service_id="billing", agent_id="a", settings=settings) as stranger,
        pytest.raises(SessionLost, match="is not known"),
    ):
        stranger.replay(session_id).__enter__()
