"""Release 0.1.0 as processes: its own code, kept as archives, run in today's environment."""

import json
import signal
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from sessionary.infra.local.ports import free_ports
from sessionary.infra.local.process import Child
from sessionary.producers import ProducerSettings
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.settings import SinkSettings
from tests.integration.processor_load import start_processor
from tests.integration.sink_rig import start_sink_process
from tests.support import Processes, environment

HOLE_MS, QUIET_MS = 5_000, 25_000  # as the auditor has them
_ARCHIVES: Final = Path(__file__).parents[1] / "recorded" / "0.1.0"
_PACKAGES: Final = ("schemas", "stream_processors", "producers", "sinks")
_MIGRATE: Final = """
from sessionary.sinks.migrate import apply
from sessionary.sinks.settings import SinkSettings
apply(SinkSettings.from_env())
"""
_END_S: Final = 300.0


class Worker(NamedTuple):
    name: str
    child: Child
    url: str

    def end(self) -> None:
        """End it gracefully."""
        end_process(self.child)


class FormerRelease:
    """The folders of the release's packages, and what makes a child process use them."""

    def __init__(self, folder: Path) -> None:
        """Unpack the release into `folder`."""
        for name in ("processor", "client_sinks"):
            with tarfile.open(_ARCHIVES / f"{name}.tar.xz") as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
                archive.extractall(folder)
        # Before the folders of today's packages, which have the same import paths.
        self.environ = {"PYTHONPATH": ":".join(str(folder / package) for package in _PACKAGES)}

    def make_tables(self, processes: Processes, clickhouse: ClickHouseSettings) -> None:
        """Create the release's tables."""
        env = {**self.environ, **environment(clickhouse)}
        child = processes.run([sys.executable, "-c", _MIGRATE], env=env, name="former-migrate")
        assert child.wait(_END_S)
        assert child.exit_code == 0

    def start_agent(self, processes: Processes, kafka: KafkaSettings, control_url: str, folder: Path) -> Child:
        """Start an agent with the release's client; it has a journal in `folder`."""
        connection = ProducerSettings.model_validate(kafka.model_dump())
        env = environment(connection, control_url=control_url, api_token="t")
        return processes.start("tests.integration.former_agent", str(folder), env=env | self.environ, name="agent")


class Fleet:
    """Starts workers of both releases for one pipeline. Both keep to the two addresses."""

    def __init__(self, kafka: KafkaSettings, processes: Processes, former: FormerRelease) -> None:
        self._kafka, self._processes, self._former = kafka, processes, former
        self._ports = dict(zip(("1", "2"), free_ports(2), strict=True))

    def url_of(self, place: str) -> str:
        """Return the address of the worker at place 1 or 2."""
        return f"http://127.0.0.1:{self._ports[place]}"

    def start_old(self, name: str) -> Worker:
        """Start a worker of 0.1.0; its name ends in its place."""
        return self._start(name, {"t": "acme"}, self._former.environ)

    def start_new(self, name: str) -> Worker:
        """Start a worker of today's release; its name ends in its place."""
        return self._start(name, {"t": "acme", "op": {"principal": "on-call", "roles": ["operator"]}}, {})

    def _start(self, name: str, tokens: dict[str, Any], environ: Mapping[str, str]) -> Worker:
        place = name[-1]
        with pytest.MonkeyPatch.context() as patch:
            set_variables(patch, environ)
            child = start_processor(
                self._processes,
                self._kafka,
                name,
                api_port=str(self._ports[place]),
                api_tokens=json.dumps(tokens),
                hole_ms=str(HOLE_MS),
                quiet_ms=str(QUIET_MS),
            )
        return Worker(name, child, self.url_of(place))


class SinkFleet:
    """Starts one sink of each kind, of either release, under the same instance names."""

    def __init__(self, settings: SinkSettings, processes: Processes, former: FormerRelease) -> None:
        self._settings, self._processes, self._former = settings, processes, former
        self._running: list[Child] = []

    def start_old(self) -> None:
        """Start the sinks of 0.1.0."""
        with pytest.MonkeyPatch.context() as patch:
            set_variables(patch, self._former.environ)
            self.start_new()

    def start_new(self) -> None:
        """Start the sinks of today's release."""
        assert not self._running
        self._running = [start_sink_process(self._processes, kind, self._settings) for kind in SINKS]

    def end(self) -> None:
        """End them gracefully: each writes what it holds."""
        while self._running:
            end_process(self._running.pop())

    def kill(self) -> None:
        """End them at once; blocks may be written in part."""
        while self._running:
            child = self._running.pop()
            child.signal(signal.SIGKILL)
            assert child.wait(_END_S)


def set_variables(patch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    """Set variables of the environment, which child processes inherit."""
    for variable, value in environ.items():
        patch.setenv(variable, value)


def end_process(child: Child) -> None:
    """End a process gracefully."""
    child.signal(signal.SIGTERM)
    assert child.wait(_END_S)
    assert child.exit_code == 0


__all__ = ["HOLE_MS", "QUIET_MS", "Fleet", "FormerRelease", "SinkFleet", "Worker", "end_process"]
