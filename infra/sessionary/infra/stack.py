"""The local stack: broker, ClickHouse endpoint, processor and the four sinks as processes under one supervisor.

<data>/env.json        the variables that reach this stack, for other commands
<data>/broker/         the broker's storage
<data>/clickhouse/     the engine's
<data>/logs/<part>.log
"""

import fcntl
import json
import os
import secrets
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from sessionary.infra.clickhouse import ClickHouse
from sessionary.infra.demo.plan import TENANTS
from sessionary.infra.environment import read_environment, write_environment
from sessionary.infra.local.clickhouse.endpoint import clickhouse_answers
from sessionary.infra.local.errors import PortTaken, StartFailed
from sessionary.infra.local.kafka.broker import broker_answers
from sessionary.infra.local.ports import LOOPBACK, free_ports, is_free
from sessionary.infra.local.supervisor import Part, PartChange, Supervisor
from sessionary.infra.topics import apply_topics
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings, KafkaSettings

SINKS = ("audit", "history", "rejected", "batches")
_PROBE_TIMEOUT_S = 1.0
# The parts of a stack that was killed end with it, but not in the same instant.
_PORT_WAIT_S = 5.0
_PORT_PAUSE_S = 0.1
_PORTS = {
    "SESSIONARY_BOOTSTRAP_SERVERS": "--port-broker",
    "SESSIONARY_CLICKHOUSE_URL": "--port-clickhouse",
    "SESSIONARY_CONTROL_URL": "--port-api",
}
_COMMAND = (sys.executable, "-m", "sessionary.infra.cli")
# What of a shell's SESSIONARY_* variables the parts hear. The others may speak of another cluster, or cannot hold for
# several parts at once (a port of metrics).
_PASSED_ON = (ENV_PREFIX + "LOG_LEVEL", ENV_PREFIX + "STORE")


class Ports(NamedTuple):
    """Ports of the parts on loopback; None takes the one of the folder's last stack, or a free one."""

    broker: int | None = None
    clickhouse: int | None = None
    api: int | None = None


def _port_of(address: str | None) -> int | None:
    tail = (address or "").rpartition(":")[2]
    return int(tail) if tail.isdecimal() else None


def _environ(data: Path, ports: Ports, partitions: int) -> dict[str, str]:
    """The stack's variables. Tokens and ports outlive a restart, so that what was configured by them goes on."""
    known = read_environment(data)
    spare = iter(free_ports(3))
    broker = ports.broker or _port_of(known.get("SESSIONARY_BOOTSTRAP_SERVERS")) or next(spare)
    clickhouse = ports.clickhouse or _port_of(known.get("SESSIONARY_CLICKHOUSE_URL")) or next(spare)
    api = ports.api or _port_of(known.get("SESSIONARY_CONTROL_URL")) or next(spare)
    tokens = {secrets.token_urlsafe(24): tenant for tenant in TENANTS}
    return {
        "SESSIONARY_BOOTSTRAP_SERVERS": f"{LOOPBACK}:{broker}",
        "SESSIONARY_PARTITIONS": known.get("SESSIONARY_PARTITIONS", str(partitions)),
        "SESSIONARY_CLICKHOUSE_URL": f"http://{LOOPBACK}:{clickhouse}",
        "SESSIONARY_API_HOST": LOOPBACK,
        "SESSIONARY_API_PORT": str(api),
        "SESSIONARY_CONTROL_URL": f"http://{LOOPBACK}:{api}",
        "SESSIONARY_API_TOKENS": known.get("SESSIONARY_API_TOKENS", json.dumps(tokens)),
    }


def inherited(shell: Mapping[str, str]) -> dict[str, str]:
    """Return what the parts take from the shell: proxies, HOME, TMPDIR and the like; no address of another stack."""
    return {name: value for name, value in shell.items() if not name.startswith(ENV_PREFIX) or name in _PASSED_ON}


def _await_free(port: int, purpose: str) -> None:
    """Wait for a port to be free. Raises `PortTaken`."""
    deadline = time.monotonic() + _PORT_WAIT_S
    while not is_free(port):
        if time.monotonic() > deadline:
            raise PortTaken(port, purpose)
        time.sleep(_PORT_PAUSE_S)


def api_ready(url: str, timeout_s: float = _PROBE_TIMEOUT_S) -> bool:
    """Whether the processor at `url` owns its partitions and serves them."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


class Stack:
    """One stack over one folder. `start` returns at once; the data stays when it stops."""

    def __init__(
        self,
        data: Path,
        *,
        ports: Ports | None = None,
        partitions: int = 4,
        on_change: Callable[[PartChange], None] = lambda _change: None,
    ) -> None:
        """`on_change` hears of each part, on the supervisor's thread."""
        data.mkdir(parents=True, exist_ok=True)
        self.data = data.resolve()
        self._lock: IO[str] | None = None
        self.environ = _environ(self.data, ports or Ports(), partitions)
        self._part_environ = {**inherited(os.environ), **self.environ}
        self._trouble: str | None = None
        self._supervisor = Supervisor(self._parts(), on_change)
        self._stopping = threading.Lock()

    def __enter__(self) -> "Stack":
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def logs(self) -> Path:
        """The folder of the parts' logs."""
        return self.data / "logs"

    def start(self) -> None:
        """Begin, and write the variables to `env.json`.

        Raises `StartFailed` where another stack serves the folder, `PortTaken` where a port is somebody else's.
        """
        self._lock = (self.data / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartFailed(f"another stack serves {self.data}: stop it first, or give another folder") from None
        # Whoever holds a port would answer for our part: the stack would seem ready, and work on a stranger's data.
        for name, option in _PORTS.items():
            _await_free(_port_of(self.environ[name]) or 0, f"this stack; choose another by {option}")
        write_environment(self.data, self.environ)
        self._supervisor.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Block until every part serves. Raises `StartFailed` with the ends of the logs of those that do not."""
        try:
            self._supervisor.wait_ready(timeout_s)
        except StartFailed as error:
            raise StartFailed(f"{self._trouble}\n{error}" if self._trouble else str(error)) from None

    def stop(self) -> None:
        """End every part, last started first; returns when all are gone. May be called twice."""
        with self._stopping:
            self._supervisor.stop()
            if self._lock is not None:
                self._lock.close()

    def _parts(self) -> list[Part]:
        kafka = KafkaSettings.from_env(self.environ)
        clickhouse = ClickHouseSettings.from_env(self.environ)
        broker_port = _port_of(kafka.bootstrap_servers) or 0
        clickhouse_port = _port_of(clickhouse.clickhouse_url) or 0
        control_url = self.environ["SESSIONARY_CONTROL_URL"]

        def broker_ready() -> bool:
            return broker_answers(kafka.bootstrap_servers) and self._done(lambda: apply_topics(kafka))

        def clickhouse_ready() -> bool:
            return clickhouse_answers(clickhouse_port) and self._done(lambda: _migrate(clickhouse))

        return [
            self._part("broker", ["--data", str(self.data / "broker"), "--port", str(broker_port)], broker_ready),
            self._part(
                "clickhouse",
                ["--data", str(self.data / "clickhouse"), "--port", str(clickhouse_port)],
                clickhouse_ready,
            ),
            self._part("processor", [], lambda: api_ready(control_url), after=["broker"]),
            *(
                self._part(f"sink-{kind}", [], None, after=["broker", "clickhouse"], command=["sink", kind])
                for kind in SINKS
            ),
        ]

    def _part(
        self,
        name: str,
        options: list[str],
        ready: Callable[[], bool] | None,
        *,
        after: list[str] | None = None,
        command: list[str] | None = None,
    ) -> Part:
        return Part(
            name=name,
            argv=[*_COMMAND, *(command or [name]), *options],
            log_path=self.logs / f"{name}.log",
            env=self._part_environ,
            ready=ready,
            after=after or [],
        )

    def _done(self, step: Callable[[], object]) -> bool:
        """Do what makes a part that answers fit to be used; what fails is tried again, and told in the end."""
        try:
            step()
        except SessionaryError as error:
            self._trouble = str(error)
            return False
        self._trouble = None
        return True


def _migrate(settings: ClickHouseSettings) -> None:
    # Imported here: ClickHouse's driver takes half a second, which only a start must spend.
    from sessionary.sinks.clickhouse.migrate import apply_migrations

    apply_migrations(settings)
    ClickHouse(settings).ping()


__all__ = ["SINKS", "Ports", "Stack", "api_ready", "inherited"]
