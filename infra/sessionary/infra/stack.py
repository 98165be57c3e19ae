"""The local stack under one supervisor: one broker or three, ClickHouse, and the roles.

The roles are a processor, four sinks, the lag exporter and, with a file of limits, quotas.

<data>/env.json           the variables with which other commands find this stack
<data>/signing-keys.json  the keys that sign what only server roles may write
<data>/prometheus.json    where the roles serve their metrics, for Prometheus
<data>/broker/            the brokers' storage
<data>/clickhouse/        the engine's storage
<data>/logs/<part>.log    one log per process
<data>/lock               locked while a stack runs over the folder
"""

import fcntl
import http.client
import json
import os
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.disk_room import ROOM_BYTES_MIN, measure_room
from sessionary.infra.environment import (
    LOCK_FILE,
    TENANTS,
    make_signing_keys,
    read_environment,
    write_environment,
)
from sessionary.infra.local.clickhouse.endpoint import PASSWORD_VARIABLE, clickhouse_answers
from sessionary.infra.local.errors import DiskFull, PortTaken, StartFailed
from sessionary.infra.local.kafka.cluster import (
    BrokerProcess,
    Cluster,
    broker_answers,
    broker_processes,
    choose_broker_count,
    plan_cluster,
    write_cluster,
)
from sessionary.infra.local.kafka.node import check_folder
from sessionary.infra.local.ports import LOOPBACK, free_ports, is_free
from sessionary.infra.local.supervisor import Part, PartChange, Supervisor
from sessionary.infra.metrics_targets import MetricsTarget, choose_metrics_ports, metrics_variables, write_targets
from sessionary.infra.topics import apply_topics
from sessionary.schemas.errors import SessionaryError, SettingsError
from sessionary.schemas.http.proxies import open_url
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings, KafkaSettings
from sessionary.schemas.topics import SINK_TOPICS
from sessionary.stream_processors.settings import SIGNING_KEYS_FILE

SINKS = tuple(SINK_TOPICS)
# Exit codes of commands after which a person must do something: settings, and set-up.
SET_UP_CODES = (2, 6)
LAG_EXPORTER = "lag-exporter"
QUOTAS = "quotas"
_ROLES = {LAG_EXPORTER: "lag", QUOTAS: "quotas"}  # of the parts that are no sinks
_PROBE_TIMEOUT_S = 1.0
# If a stack is killed, its processes end a moment later.
_PORT_WAIT_S = 5.0
_PORT_PAUSE_S = 0.1
_PORTS = {
    "SESSIONARY_BOOTSTRAP_SERVERS": "--port-broker",
    "SESSIONARY_CLICKHOUSE_URL": "--port-clickhouse",
    "SESSIONARY_CONTROL_URL": "--port-api",
}
_COMMAND = (sys.executable, "-m", "sessionary.infra.cli")
# The only SESSIONARY_* variables that the processes inherit from the shell. The others may name
# another cluster, or cannot hold for several processes at once (a metrics port).
_INHERITED = (ENV_PREFIX + "LOG_FORMAT", ENV_PREFIX + "LOG_LEVEL", ENV_PREFIX + "STORE")


class Ports(NamedTuple):
    """Loopback ports of the servers. None: the port of the folder's last stack, else a free one.

    Three brokers take `broker` and the two ports that follow it. The pages with the metrics of the
    four sinks and the lag exporter take `metrics` and the four ports that follow it; the page of
    the role quotas, if there is one, takes the next port.
    """

    broker: int | None = None
    clickhouse: int | None = None
    api: int | None = None
    metrics: int | None = None


def _port_of(address: str | None) -> int | None:
    tail = (address or "").rpartition(":")[2]
    return int(tail) if tail.isdecimal() else None


def _stack_variables(
    data: Path, known: Mapping[str, str], ports: Ports, partitions: int, cluster: Cluster | None
) -> dict[str, str]:
    """Return the stack's variables. Secrets and ports of the folder's last stack, `known`, stay."""
    spare = iter(free_ports(3))
    broker = ports.broker or _port_of(known.get("SESSIONARY_BOOTSTRAP_SERVERS")) or next(spare)
    clickhouse = ports.clickhouse or _port_of(known.get("SESSIONARY_CLICKHOUSE_URL")) or next(spare)
    api = ports.api or _port_of(known.get("SESSIONARY_CONTROL_URL")) or next(spare)
    operator_token = known.get("SESSIONARY_OPERATOR_TOKEN", secrets.token_urlsafe(24))
    tokens: dict[str, object] = {secrets.token_urlsafe(24): tenant for tenant in TENANTS}
    if "SESSIONARY_API_TOKENS" in known:
        tokens = json.loads(known["SESSIONARY_API_TOKENS"])
    tokens[operator_token] = {"principal": "operator", "roles": ["operator"]}
    return {
        "SESSIONARY_BOOTSTRAP_SERVERS": cluster.bootstrap_servers if cluster else f"{LOOPBACK}:{broker}",
        "SESSIONARY_PARTITIONS": known.get("SESSIONARY_PARTITIONS", str(partitions)),
        "SESSIONARY_CLICKHOUSE_URL": f"http://{LOOPBACK}:{clickhouse}",
        PASSWORD_VARIABLE: known.get(PASSWORD_VARIABLE) or secrets.token_urlsafe(24),
        "SESSIONARY_API_HOST": LOOPBACK,
        "SESSIONARY_API_PORT": str(api),
        "SESSIONARY_CONTROL_URL": f"http://{LOOPBACK}:{api}",
        "SESSIONARY_API_TOKENS": json.dumps(tokens),
        "SESSIONARY_OPERATOR_TOKEN": operator_token,
        SIGNING_KEYS_FILE: str(data / "signing-keys.json"),
    }


def _quota_variables(limits: Path, port: int) -> dict[str, str]:
    """Return the variables of a stack with the role quotas; its clients' runs wait."""
    return {
        "SESSIONARY_QUOTAS": "true",
        "SESSIONARY_QUOTAS_FILE": str(limits),
        "SESSIONARY_QUOTAS_URL": f"http://{LOOPBACK}:{port}",
    }


def _find_limits(known: Mapping[str, str], given: Path | None) -> Path | None:
    """Return the file of the tenants' limits, by default that of the folder's last stack.

    None: the stack has no role quotas. Raises `SettingsError` if the file cannot be used.
    """
    former = known.get("SESSIONARY_QUOTAS_FILE")
    path = given or (Path(former) if former else None)
    if path is None:
        return None
    from sessionary.stream_processors.quotas.settings import LimitsFile  # few stacks have one

    try:
        LimitsFile(path)
    except SettingsError as error:
        raise SettingsError(f"{error}; name a file of limits by --quotas") from None
    return path.resolve()


def inherited_variables(shell: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the stack's processes inherit from the shell.

    These are proxy variables, HOME, TMPDIR and so on, but no address of another stack.
    """
    return {name: value for name, value in shell.items() if not name.startswith(ENV_PREFIX) or name in _INHERITED}


def _wait_for_free_port(port: int, purpose: str) -> None:
    """Block until a port is free, up to 5 s. Raises `PortTaken`."""
    deadline = time.monotonic() + _PORT_WAIT_S
    while not is_free(port):
        if time.monotonic() > deadline:
            raise PortTaken(port, purpose)
        time.sleep(_PORT_PAUSE_S)


def api_ready(url: str, timeout_s: float = _PROBE_TIMEOUT_S, context: ssl.SSLContext | None = None) -> bool:
    """Return True if the processor at `url` has recovered its partitions and serves them.

    Blocks. `context`: for https.
    """
    return _answers_well(f"{url.rstrip('/')}/readyz", timeout_s, context)


def _answers_well(page: str, timeout_s: float = _PROBE_TIMEOUT_S, context: ssl.SSLContext | None = None) -> bool:
    try:
        with open_url(page, timeout_s, context) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, http.client.HTTPException):
        return False


class Stack:
    """One stack over one folder.

    The data is kept when it stops. A context manager starts and stops it.
    """

    def __init__(
        self,
        data: Path,
        *,
        ports: Ports | None = None,
        partitions: int = 4,
        brokers: int | None = None,
        lag_exporter: bool = True,
        quotas_file: Path | None = None,
        on_change: Callable[[PartChange], None] = lambda _change: None,
    ) -> None:
        """Choose ports, tokens and ClickHouse's password; start nothing yet.

        `data`: the folder, created if missing. `partitions`: of each topic of a new stack.
        `brokers`: 1 or 3; None takes the number that the folder was made for, 1 for a new one.
        `lag_exporter`: whether the lag exporter is a part of the stack. `quotas_file`: the tenants'
        limits, with which the role quotas is a part too; None takes the folder's last file, if it
        had one. `on_change` is called on the supervisor's thread, once per state change of a
        process. Raises `SettingsError`, `BrokerCountDiffers`.
        """
        if brokers not in (None, 1, 3):
            raise SettingsError(f"--brokers is {brokers}: a stack has 1, or 3; with 2, each write would need both")
        check_folder(data)
        data.mkdir(parents=True, exist_ok=True)
        self.data = data.resolve()
        self._lock: IO[str] | None = None
        ports, self._broker_data = ports or Ports(), self.data / "broker"
        self._brokers = choose_broker_count(self._broker_data, brokers)
        self._cluster = plan_cluster(self._broker_data, ports.broker) if self._brokers > 1 else None
        known = read_environment(self.data)
        self.is_new = not known  # no stack served the folder before
        self.environ = _stack_variables(self.data, known, ports, partitions, self._cluster)
        limits = _find_limits(known, quotas_file)
        measured = [*(f"sink-{kind}" for kind in SINKS), *([LAG_EXPORTER] if lag_exporter else [])]
        measured += [] if limits is None else [QUOTAS]
        self._metrics_ports = choose_metrics_ports(known, measured, ports.metrics)
        if limits is not None:
            self.environ |= _quota_variables(limits, self._metrics_ports[QUOTAS])
        # People read the logs of a local stack.
        self._part_environ = {ENV_PREFIX + "LOG_FORMAT": "text", **inherited_variables(os.environ), **self.environ}
        self._setup_error: str | None = None
        self._supervisor = Supervisor(self._make_parts(), on_change, set_up_codes=SET_UP_CODES)
        self._stopping = threading.Lock()

    def __enter__(self) -> "Stack":
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def has_quotas(self) -> bool:
        """Whether the role quotas is a part of the stack."""
        return QUOTAS in self._metrics_ports

    @property
    def log_folder(self) -> Path:
        """The folder of the processes' logs."""
        return self.data / "logs"

    @property
    def targets(self) -> list[MetricsTarget]:
        """The address at which each role serves /metrics, /healthz and /readyz."""
        api = MetricsTarget("processor", "processor", _port_of(self.environ["SESSIONARY_CONTROL_URL"]) or 0)
        others = (MetricsTarget(_ROLES.get(name, "sink"), name, port) for name, port in self._metrics_ports.items())
        return [api, *others]

    def start(self) -> None:
        """Start the processes and write `env.json` and `prometheus.json`; wait for no answers.

        Raises `DiskFull` if the folder's disk has too little room, `StartFailed` if another stack
        serves the folder, `PortTaken` if a port is in use.
        """
        room = measure_room(self.data)
        if not room.is_enough:
            raise DiskFull(f"{room}; a stack needs {ROOM_BYTES_MIN >> 20} MiB: make room, or name another by --data")
        self._lock = (self.data / LOCK_FILE).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartFailed(
                f"another stack serves {self.data}: stop it first, or name another folder by --data"
            ) from None
        # Another server on our port would answer our probes: the stack would seem ready.
        for name, option in _PORTS.items():
            for address in self.environ[name].split(","):
                _wait_for_free_port(_port_of(address) or 0, f"this stack; choose another port by {option}")
        for name, port in self._metrics_ports.items():
            _wait_for_free_port(port, f"the metrics of {name}; choose other ports by --port-metrics")
        if self._cluster is not None:
            write_cluster(self._broker_data, self._cluster)
        make_signing_keys(Path(self.environ[SIGNING_KEYS_FILE]))
        write_environment(self.data, {**self.environ, **metrics_variables(self._metrics_ports)})
        write_targets(self.data, self.targets)
        self._supervisor.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Block until every process serves, up to `timeout_s`.

        Raises `StartFailed` with the ends of the logs of the processes that do not serve.
        """
        try:
            self._supervisor.wait_ready(timeout_s)
        except StartFailed as error:
            raise StartFailed(f"{self._setup_error}\n{error}" if self._setup_error else str(error)) from None

    def stop(self) -> None:
        """End every process, the last started first.

        Blocks until all are gone; may be called twice.
        """
        with self._stopping:
            self._supervisor.stop()
            if self._lock is not None:
                self._lock.close()

    def _make_parts(self) -> list[Part]:
        kafka = KafkaSettings.from_env(self.environ)
        clickhouse = ClickHouseSettings.from_env(self.environ)
        clickhouse_port = _port_of(clickhouse.clickhouse_url) or 0
        control_url = self.environ["SESSIONARY_CONTROL_URL"]

        def broker_part(broker: BrokerProcess) -> Part:
            def ready() -> bool:
                return broker_answers(broker.address) and self._succeeds(lambda: apply_topics(kafka, self._brokers))

            return self._make_part(broker.name, list(broker.options), ready, command=["broker"])

        brokers = [broker_part(broker) for broker in broker_processes(self._broker_data, kafka.bootstrap_servers)]
        names = [broker.name for broker in brokers]

        def clickhouse_ready() -> bool:
            return clickhouse_answers(clickhouse_port) and self._succeeds(lambda: _migrate_database(clickhouse))

        return [
            *brokers,
            self._make_part(
                "clickhouse",
                ["--data", str(self.data / "clickhouse"), "--port", str(clickhouse_port)],
                clickhouse_ready,
            ),
            self._make_part("processor", [], lambda: api_ready(control_url), after=names),
            *(
                self._make_measured_part(name, port, after=names if name == QUOTAS else [*names, "clickhouse"])
                for name, port in self._metrics_ports.items()
            ),
        ]

    def _make_measured_part(self, name: str, port: int, *, after: list[str]) -> Part:
        """Return a sink, the lag exporter or the role quotas, which is like a processor.

        A sink or the exporter counts as ready if it is alive (/healthz). A sink that waits for an
        operator is not ready by /readyz. It would keep the stack from starting, although an
        operator needs the stack to see the reason.
        """

        if name == QUOTAS:
            part = self._make_part(name, [], lambda: api_ready(f"http://{LOOPBACK}:{port}"), after=after)
            return replace(part, env={**self._part_environ, ENV_PREFIX + "API_PORT": str(port)})

        def answers() -> bool:
            return _answers_well(f"http://{LOOPBACK}:{port}/healthz")

        command = [name] if name == LAG_EXPORTER else ["sink", name.removeprefix("sink-")]
        part = self._make_part(name, [], answers, after=after, command=command)
        pages = {ENV_PREFIX + "METRICS_HOST": LOOPBACK, ENV_PREFIX + "METRICS_PORT": str(port)}
        return replace(part, env={**self._part_environ, **pages})

    def _make_part(
        self,
        name: str,
        options: list[str],
        ready: Callable[[], bool],
        *,
        after: list[str] | None = None,
        command: list[str] | None = None,
    ) -> Part:
        return Part(
            name=name,
            argv=[*_COMMAND, "serve", *(command or [name]), *options],
            log_path=self.log_folder / f"{name}.log",
            env=self._part_environ,
            ready=ready,
            after=after or [],
        )

    def _succeeds(self, step: Callable[[], object]) -> bool:
        """Run a set-up step and return True if it succeeded.

        The supervisor tries a failed step again; `wait_ready` reports the last error.
        """
        try:
            step()
        except SessionaryError as error:
            self._setup_error = str(error)
            return False
        self._setup_error = None
        return True


def _migrate_database(settings: ClickHouseSettings) -> None:
    # Imported here: loading ClickHouse's driver takes half a second.
    from sessionary.sinks.clickhouse.migrate import apply_migrations

    apply_migrations(settings)
    ClickHouseClient(settings).server_version()
