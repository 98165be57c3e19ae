"""A reader in another process follows sessions, while their partitions change hands."""

import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.producers import Session, SessionClient
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, TOKEN, PipelineRig
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.waiting import wait_until

SESSIONS, UPDATES = 8, 25
_PAUSE_S = 0.02


class Reader:
    """What a process that follows sessions was reported."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._child.log.read_text().splitlines() if line.endswith("}")]

    def last_versions(self) -> dict[str, int]:
        return {line["session"]: line["version"] for line in self.lines()}

    def wait_for(self, sessions: Sequence[Session]) -> None:
        """Wait until each session's last version was reported."""
        wanted = {session.session_id: session.version for session in sessions}
        wait_until(lambda: self.last_versions() == wanted, 60, "the last versions to be reported")

    def delays_ms(self, first: int = 0) -> list[float]:
        """Return how long after its update each state was reported, from a line on."""
        return sorted(
            (line["reported_s"] - line["content"]["sent_s"]) * 1_000
            for line in self.lines()[first:]
            if "sent_s" in line["content"]
        )


def update(sessions: Sequence[Session], updates: int = UPDATES) -> None:
    """Update all sessions in turn; each content has the time at which it was sent."""
    for _ in range(updates):
        for session in sessions:
            session.update_state({"sent_s": time.time()})
        time.sleep(_PAUSE_S)  # spreads the updates over several transactions; nothing waits for it


def report(what: str, delays_ms: Sequence[float]) -> None:
    p50, p99 = (delays_ms[int(len(delays_ms) * share)] for share in (0.5, 0.99))
    figures = f"{len(delays_ms)} states reported, p50 {p50:.0f} ms, p99 {p99:.0f} ms, last {delays_ms[-1]:.0f} ms"
    sys.stdout.write(f"{what}: {figures}\n")


def test_a_reader_in_another_process_sees_each_last_version_and_none_that_falls(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    pipeline.start_processor()

    def second_owns(some: bool) -> bool:
        return (len(pipeline.partition_states()) < kafka.partitions) is some

    second_port = str(free_port())
    second = pipeline.start_processor(instance="w2", api_port=second_port)
    wait_until(lambda: second_owns(True), 60, "the second processor to own partitions")
    settings = pipeline.client_settings(tmp_path, "writer")
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="writer", settings=settings) as client:
        sessions = [client.session(user_id="u", state={"n": 0}) for _ in range(SESSIONS)]
        for session in sessions:
            session.sync()
        ids = [session.session_id for session in sessions]
        env = environment(kafka, control_url=pipeline.control_url, api_token=TOKEN, spool_dir=str(tmp_path / "reader"))
        reader = Reader(processes.start("tests.support.following_process", *ids, env=env, name="reader"))
        reader.wait_for(sessions)

        update(sessions)
        reader.wait_for(sessions)
        report("with two workers", reader.delays_ms())

        update(sessions, UPDATES // 2)
        second.signal(signal.SIGKILL)
        update(sessions, UPDATES)  # some of them wait for a judge
        reader.wait_for(sessions)
        wait_until(lambda: second_owns(False), 60, "the first processor to own all partitions")

        before = len(reader.lines())
        pipeline.start_processor(instance="w2", api_port=second_port)
        while not second_owns(True):
            update(sessions, 1)
        update(sessions)
        reader.wait_for(sessions)
        report("while a worker joined", reader.delays_ms(before))
        for session in sessions:
            session.close()
        wanted = dict.fromkeys(ids, "Terminated")
        wait_until(lambda: {line["session"]: line["state"] for line in reader.lines()} == wanted, 60, "the ends")

    for session in sessions:
        reported = [line for line in reader.lines() if line["session"] == session.session_id]
        versions = [line["version"] for line in reported]
        assert versions == sorted(versions)
        assert versions[-1] == session.version > 3 * UPDATES
        assert len(set(versions)) > UPDATES  # changes are reported, not only the ends of the rounds
        assert reported[-1]["content"] == session.state


def test_a_client_follows_what_it_sent_itself(kafka: KafkaSettings, processes: Processes, tmp_path: Path) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    worker = pipeline.start_processor()
    settings = pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        session = client.session(user_id="u", state={"n": 0})
        follower = client.follow(session)  # before anything of it is judged
        assert next(follower).state == "Active"
        session.update_state({"n": 1})
        while (view := next(follower)).version == 1:
            assert view.state == "Active"
        assert view.state_json == '{"n":1}'
        worker.signal(signal.SIGTERM)
        assert worker.wait(60)
        assert worker.exit_code == 0
        pipeline.start_processor()
        session.update_state({"n": 2})
        while (view := next(follower)).version == 2:
            assert view.state == "Active"
        assert (view.version, view.state_json) == (3, '{"n":2}')
    assert list(follower) == []
