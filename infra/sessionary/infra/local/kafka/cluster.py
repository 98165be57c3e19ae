"""Three Kafka nodes as one cluster over a folder, on loopback; each is a broker and a controller.

    <data>/cluster.json   cluster id, and ports and storage id of each node
    <data>/1/, 2/, 3/     the folders of the nodes, as `node` describes them

If any one is lost, a quorum of controllers and two replicas of each partition remain. Each node is
a process of its own, which a supervisor starts and restarts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sessionary.infra.local.errors import BrokerCountDiffers, StartFailed
from sessionary.infra.local.kafka.jars import Progress
from sessionary.infra.local.kafka.node import (
    NodeIdentity,
    ProxiedListener,
    QuorumMember,
    prepare_start,
    random_id,
    read_identity,
    replace_json,
)
from sessionary.infra.local.ports import LOOPBACK, free_ports

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
    os.execv(argv[0], argv)


def _quorum_member(cluster: Cluster, number: int) -> QuorumMember:
    controllers = [f"{LOOPBACK}:{node.controller_port}" for node in cluster.nodes]
    voters = ",".join(
        f"{place}@{address}:{node.directory_id}"
        for place, (node, address) in enumerate(zip(cluster.nodes, controllers, strict=True), 1)
    )
    return QuorumMember(number, ",".join(controllers), ("--initial-controllers", voters), _NODES, _MIN_ISR, _PROPERTIES)
