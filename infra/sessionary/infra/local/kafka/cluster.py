"""Three Kafka nodes as one cluster over a folder, on loopback; each is a broker and a controller.

    <data>/cluster.json   cluster id, and ports and storage id of each node
    <data>/1/, 2/, 3/     the folders of the nodes, as `node` describes them

If any one is lost, a quorum of controllers and two replicas of each partition remain. Each node is
a separate process, which a supervisor starts and restarts.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sessionary.infra.local.errors import BrokerCountDiffers, StartFailed
from sessionary.infra.local.kafka.node import (
    NodeIdentity,
    Progress,
    ProxiedListener,
    QuorumMember,
    check_folder,
    java_environment,
    prepare_start,
    random_id,
    read_identity,
    replace_json,
)
from sessionary.infra.local.ports import LOOPBACK, free_ports
from sessionary.infra.local.process import Child, LocalServer

_FILE = "cluster.json"
_NODES = 3
_MIN_ISR = 2
# A controlled shutdown asks the controllers' quorum for leave: the last node to stop would wait for
# it for five minutes. Without one, the others take over after broker.session.timeout.ms.
_PROPERTIES = f"""\
min.insync.replicas={_MIN_ISR}
controlled.shutdown.enable=false
"""


class ClusterNode(NamedTuple):
    """A node's ports, and the id of its storage."""

    port: int
    controller_port: int
    directory_id: str


class Cluster(NamedTuple):
    """The nodes of a cluster. A node's id is its place among them, from 1."""

    cluster_id: str
    nodes: Sequence[ClusterNode]

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of each broker, comma-separated."""
        return ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)


class BrokerProcess(NamedTuple):
    """A broker as a process: its name, `host:port`, the options of `sessionary serve broker`."""

    name: str
    address: str
    options: tuple[str, ...]


def _read_cluster(data: Path) -> Cluster | None:
    try:
        known = json.loads((data / _FILE).read_text())
    except FileNotFoundError:
        return None
    return Cluster(known["cluster_id"], [ClusterNode(**node) for node in known["nodes"]])


def write_cluster(data: Path, cluster: Cluster) -> None:
    """Record a cluster in its folder, which is created if missing: its nodes can run then."""
    data.mkdir(parents=True, exist_ok=True)
    nodes = [node._asdict() for node in cluster.nodes]
    replace_json(data / _FILE, {"cluster_id": cluster.cluster_id, "nodes": nodes})


def choose_broker_count(data: Path, wanted: int | None = None) -> int:
    """Return the number of brokers that a folder was made for; for a new one `wanted`, else 1.

    Raises `BrokerCountDiffers` if the folder was made for another number than `wanted`.
    """
    cluster = _read_cluster(data)
    found = len(cluster.nodes) if cluster else 1 if read_identity(data) else None
    if found and wanted and found != wanted:
        raise BrokerCountDiffers(data, found, wanted)
    return wanted or found or 1


def plan_cluster(data: Path, port: int | None = None) -> Cluster:
    """Return the folder's cluster, or a new one; write nothing.

    The brokers take `port` and the two that follow it; None: the recorded ports, else free ones.
    """
    cluster = _read_cluster(data)
    if cluster is None:
        spare = free_ports(2 * _NODES)
        ports = zip(spare[:_NODES], spare[_NODES:], strict=True)
        cluster = Cluster(random_id(), [ClusterNode(*pair, random_id()) for pair in ports])
    if port is None:
        return cluster
    return cluster._replace(nodes=[node._replace(port=port + place) for place, node in enumerate(cluster.nodes)])


def broker_processes(data: Path, bootstrap_servers: str) -> list[BrokerProcess]:
    """Return the brokers of a folder: one alone, or the nodes of its cluster."""
    addresses = bootstrap_servers.split(",")
    if len(addresses) == 1:
        port = bootstrap_servers.rpartition(":")[2]
        return [BrokerProcess("broker", bootstrap_servers, ("--data", str(data), "--port", port))]
    return [
        BrokerProcess(f"broker-{number}", address, ("--data", str(data), "--node", str(number)))
        for number, address in enumerate(addresses, 1)
    ]


def run_node(data: Path, number: int, progress: Progress, listener: ProxiedListener | None = None) -> None:
    """Replace this process by a node of the folder's cluster (exec): pid and output stay the same.

    `listener`: for clients behind a proxy, besides the usual one.

    Never returns. Raises `PortTaken`, `JarsUnavailable`, `StartFailed` if it cannot start.
    """
    cluster = _read_cluster(data)
    if cluster is None or number > len(cluster.nodes):
        raise StartFailed(f"{data} has no cluster with a node {number}: make one by sessionary up --brokers {_NODES}")
    folder, node = data.resolve() / str(number), cluster.nodes[number - 1]
    folder.mkdir(exist_ok=True)
    identity = NodeIdentity(cluster.cluster_id, node.port, node.controller_port)
    argv = prepare_start(folder, identity, progress, member=_quorum_member(cluster, number), listener=listener)
    os.execve(argv[0], argv, java_environment(folder) or os.environ)


def _quorum_member(cluster: Cluster, number: int) -> QuorumMember:
    controllers = [f"{LOOPBACK}:{node.controller_port}" for node in cluster.nodes]
    voters = ",".join(
        f"{place}@{address}:{node.directory_id}"
        for place, (node, address) in enumerate(zip(cluster.nodes, controllers, strict=True), 1)
    )
    return QuorumMember(number, ",".join(controllers), ("--initial-controllers", voters), _NODES, _MIN_ISR, _PROPERTIES)


# One Kafka broker, a node that is its own cluster.
#
# After a restart, also after SIGKILL, the broker has the same cluster id, ports and records.


_PROBE_TIMEOUT_S = 2.0


def _ignore_progress(_line: str) -> None:
    return None


def _broker_identity(data: Path, port: int | None) -> NodeIdentity:
    """Return the cluster id and ports of the folder's broker; `port` overrides the recorded one.

    Raises `BrokerCountDiffers`.
    """
    choose_broker_count(data, 1)
    known = read_identity(data)
    if known is None:
        spare = free_ports(2)
        return NodeIdentity(random_id(), port or spare[0], spare[1])
    return NodeIdentity(known.cluster_id, port or known.port, known.controller_port)


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
        and uses 1 GiB of heap. Raises `BrokerCountDiffers`.
        """
        super().__init__("the broker", log)
        self._data = data.resolve()
        check_folder(self._data)
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
        argv = prepare_start(self._data, self._identity, self._progress, optimising=self._optimising)
        self._child = Child(argv, self._log, java_environment(self._data))

    def is_answering(self) -> bool:
        """Return True if the broker answers a metadata request."""
        return broker_answers(self.bootstrap_servers)


def run_broker(
    data: Path,
    port: int | None = None,
    progress: Progress = _ignore_progress,
    listener: ProxiedListener | None = None,
) -> None:
    """Replace this process by the broker (exec): pid, output and signals stay the same.

    `listener`: for clients behind a proxy, besides the usual one.

    Never returns. Raises `BrokerCountDiffers`, `PortTaken`, `JarsUnavailable`, `StartFailed` if it
    cannot start.
    """
    folder = data.resolve()
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    argv = prepare_start(folder, _broker_identity(folder, port), progress, listener=listener)
    os.execve(argv[0], argv, java_environment(folder) or os.environ)
