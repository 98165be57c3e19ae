"""An operator moves sessions by commands: one of them, and then all of a service."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sessionary.producers import Session, SessionClient
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.schemas.types import Limits
from tests.integration.pipeline_rig import COMMAND, TENANT, TOKEN, PipelineRig
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.waiting import wait_until

OPERATOR = "token-of-ops"
TOKENS = {TOKEN: TENANT, OPERATOR: {"tenant": TENANT, "principal": "alice", "roles": ["reader", "operator"]}}
LIMITS = Limits(model_ms=600_000, override=True)
_SESSIONS = 40


class DrainRig:
    """A pipeline, and the commands of an operator."""

    def __init__(
        self, kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, folder: Path
    ) -> None:
        self._kafka, self._clickhouse, self._processes, self._folder = kafka, clickhouse, processes, folder
        self.pipeline = PipelineRig(kafka, clickhouse, processes)
        self.pipeline.start_processor(api_tokens=json.dumps(TOKENS))
        self.pipeline.start_sinks(("audit", "history", "rejected"))
        self.errors: list[Exception] = []

    def source(self) -> SessionClient:
        settings = self.pipeline.client_settings(self._folder, "source")
        return SessionClient(
            tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings, on_error=self.errors.append
        )

    def start_target(self) -> None:
        env = environment(
            self._kafka,
            control_url=self.pipeline.control_url,
            api_token=TOKEN,
            spool_dir=str(self._folder / "target"),
        )
        self._processes.start("tests.support.migration_target", "shipping", env=env, name="target")

    def run(self, *arguments: str, code: int = 0) -> list[Any]:
        """Run a command; return the JSON lines that it prints."""
        env = environment(self._kafka, self._clickhouse, control_url=self.pipeline.control_url, operator_token=OPERATOR)
        words = [COMMAND, *arguments, "--json"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


def open_sessions(source: SessionClient, count: int) -> list[Session]:
    sessions = [source.session(user_id="u", state={"steps": 0}, limits=LIMITS) for _ in range(count)]
    for session in sessions:
        session.sync()
    return sessions


def test_an_operator_moves_one_session_and_drains_a_service(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = DrainRig(kafka, clickhouse, processes, tmp_path)
    with rig.source() as source:
        first, *others = open_sessions(source, _SESSIONS)
        rig.pipeline.wait_landed()
        why = ("--reason", "the host goes away")
        [stayed] = rig.run("session", "move", first.session_id, "--to", "absent", "--ttl", "1", *why, code=1)
        assert (stayed["step"], stayed["reason_code"], stayed["actor"]) == ("aborted", "target_silent", "alice")
        rig.start_target()
        [moved] = rig.run("session", "move", first.session_id, "--to", "shipping", *why)
        assert (moved["step"], moved["epoch"]) == ("completed", 2)
        begun_s = time.monotonic()
        [report] = rig.run("session", "drain", "billing", "--to", "shipping", "--rate", "200")
        sys.stdout.write(f"{len(others)} sessions drained in {time.monotonic() - begun_s:.1f} s\n")
        assert report == {
            "service": "billing",
            "to": "shipping",
            "sessions": len(others),
            "moved": len(others),
            "stayed": {},
        }
        assert {source.attach(each.session_id).sync().owner_service for each in (first, *others)} == {"shipping"}
        wait_until(
            lambda: len(rig.run("session", "moves", "--limit", "100")) == 2 + len(others), 60, "all to be listed"
        )
        [nothing] = rig.run("session", "drain", "billing", "--to", "shipping")
        assert (nothing["sessions"], nothing["moved"]) == (0, 0)
        assert rig.run("session", "drain", "billing", "--to", "billing", code=5) == []
