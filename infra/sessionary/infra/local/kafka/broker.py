"""One Kafka broker, a node that is its own cluster.

After a restart, also after SIGKILL, the broker has the same cluster id, ports and records.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sessionary.infra.local.kafka.cluster import choose_broker_count
from sessionary.infra.local.kafka.jars import Progress
from sessionary.infra.local.kafka.node import NodeIdentity, ProxiedListener, prepare_start, random_id, read_identity
from sessionary.infra.local.ports import LOOPBACK, free_ports
from sessionary.infra.local.process import Child
from sessionary.infra.local.server import LocalServer

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
        self._child = Child(argv, self._log)

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
    folder.mkdir(parents=True, exist_ok=True)
    argv = prepare_start(folder, _broker_identity(folder, port), progress, listener=listener)
    os.execv(argv[0], argv)
