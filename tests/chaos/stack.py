"""The real stack in a temporary folder: each part is a process that a supervisor restarts.

servers      one broker or three, ClickHouse endpoint
proxies      one between each broker and all parts; the harness itself reaches the brokers directly;
             before them, in a run with late requests, one that reads what the workers send
workers      two processors, static members w1 (memory) and w2 (RocksDB on a small disk)
sinks        four
quotas       one worker, in a run that kills it
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sessionary.infra.local.clickhouse.endpoint import clickhouse_answers
from sessionary.infra.local.kafka.cluster import (
    BrokerProcess,
    broker_answers,
    broker_processes,
    plan_cluster,
    write_cluster,
)
from sessionary.infra.local.kafka.node import ProxiedListener
from sessionary.infra.local.ports import LOOPBACK, free_ports
from sessionary.infra.local.supervisor import Part, Supervisor
from sessionary.infra.stack import api_ready, inherited_variables
from sessionary.infra.topics import apply_topics
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings, KafkaSettings
from tests.auditor.evidence import TABLES, query_rows
from tests.auditor.signatures import SECRETS
from tests.chaos.schedule import (
    CRAMPED,
    CRAMPED_STORE,
    PROCESSORS,
    QUOTA_SLOTS,
    QUOTA_TENANT,
    QUOTAS,
    SESSION_TIMEOUT_S,
    SINKS,
    FaultKind,
)
from tests.chaos.small_disk import SmallDisk
from tests.late_requests.proxy import KafkaProxy
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

PARTITIONS = 4
TENANTS = ("acme", "globex", "initech")
DATABASE = "sessionary"
OPERATOR_TOKEN = "token-of-operators"
PREFIX = "sessionary"
_COMMAND = (sys.executable, "-m", "sessionary.infra.cli")
_START_S = 180.0
_ASK_S = 5.0
_SPOOL_MIB, _STORE_MIB = 24, 96


class ChaosStack:
    """All parts. `start` waits until they are ready; `close` stops them and removes the folder."""

    def __init__(self, logs: Path, *, brokers: int, small_disks: bool, deck: Collection[FaultKind]) -> None:
        """Write logs to `logs`, which is kept after `close`. `brokers`: 1 or 3.

        `deck`: the kinds of faults. Some need a part of their own: the role quotas, or a proxy that
        reads what the workers send.
        """
        quotas = "kill quotas" in deck
        self.logs = logs
        self._folder = tempfile.TemporaryDirectory(prefix="sessionary-chaos-")
        self.folder = Path(self._folder.name)
        names = ("broker", "clickhouse", *PROCESSORS, *SINKS, QUOTAS)
        spare = free_ports(len(names) + 2 * brokers)
        ports = dict(zip(names, spare, strict=False))
        broker_data = self.folder / "broker"
        self.servers_address = f"{LOOPBACK}:{ports['broker']}"
        if brokers > 1:
            write_cluster(broker_data, cluster := plan_cluster(broker_data))
            self.servers_address = cluster.bootstrap_servers
        processes = broker_processes(broker_data, self.servers_address)
        self.brokers = [broker.name for broker in processes]
        listeners = list(map(ProxiedListener, spare[len(names) :: 2], spare[len(names) + 1 :: 2]))
        self.proxies = {
            name: TcpProxy(listener.proxy_port, listener.port)
            for name, listener in zip(self.brokers, listeners, strict=True)
        }
        self.clickhouse_url = f"http://{LOOPBACK}:{ports['clickhouse']}"
        self.clickhouse = ClickHouseSettings(clickhouse_url=self.clickhouse_url, clickhouse_database=DATABASE)
        self.control_urls = {name: f"http://{LOOPBACK}:{ports[name]}" for name in PROCESSORS}
        self.sink_urls = {kind: f"http://{LOOPBACK}:{ports[kind]}" for kind in SINKS}
        self.quotas_url = f"http://{LOOPBACK}:{ports[QUOTAS]}" if quotas else None
        self.tokens = {tenant: f"token-of-{tenant}" for tenant in (*TENANTS, QUOTA_TENANT)}
        self.kafka = KafkaSettings(bootstrap_servers=self.servers_address, topic_prefix=PREFIX, partitions=PARTITIONS)
        self.disks = {
            CRAMPED: SmallDisk(self.folder / "small-spool", _SPOOL_MIB, mounted=small_disks),
            CRAMPED_STORE: SmallDisk(self.folder / "small-store", _STORE_MIB, mounted=small_disks),
        }
        proxied = ",".join(f"{LOOPBACK}:{proxy.port}" for proxy in self.proxies.values())
        self.late_requests = KafkaProxy(proxied) if "late requests" in deck else None
        self.environ = {
            "BOOTSTRAP_SERVERS": proxied,
            "TOPIC_PREFIX": PREFIX,
            "PARTITIONS": str(PARTITIONS),
            "CLICKHOUSE_URL": self.clickhouse_url,
            "CLICKHOUSE_DATABASE": DATABASE,
            "CONTROL_URL": self.control_urls["w1"],
            "API_TOKENS": json.dumps({token: tenant for tenant, token in self.tokens.items()}),
            "SIGNING_KEYS": json.dumps(SECRETS),
            "SESSION_TIMEOUT_MS": str(int(SESSION_TIMEOUT_S * 1_000)),
            "SINK_SESSION_TIMEOUT_MS": "6000",
        }
        self.servers = Supervisor([*map(self._broker, processes, listeners), self._clickhouse(ports["clickhouse"])])
        admitting = [self._quotas(ports[QUOTAS])] if quotas else []
        self.workers = Supervisor([*(self._worker(name, ports[name]) for name in PROCESSORS), *admitting])
        self.sinks = Supervisor([self._sink(kind, ports[kind]) for kind in SINKS])
        self._closing = ExitStack()
        self._supervisors = (self.servers, self.workers, self.sinks)

    def start(self) -> None:
        """Start all parts. Raises `StartFailed` with the ends of the logs."""
        for proxy in self.proxies.values():
            self._closing.enter_context(proxy)
        if self.late_requests is not None:
            self._closing.enter_context(self.late_requests)
        self.servers.start()
        self.servers.wait_ready(_START_S)
        self.sinks.start()
        self.workers.start()
        self.workers.wait_ready(_START_S)

    def close(self) -> None:
        """Stop all parts and remove the folder."""
        for supervisor in reversed(self._supervisors):
            supervisor.stop()
        self._closing.close()
        for disk in self.disks.values():
            disk.close()
        self._folder.cleanup()

    def part(
        self,
        name: str,
        argv: list[str],
        ready: Callable[[], bool] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Part:
        """Describe a process; `more` are variables without the `SESSIONARY_` prefix."""
        settings = {ENV_PREFIX + key: value for key, value in {**self.environ, **(more or {})}.items()}
        environ = {**inherited_variables(os.environ), "PYTHONUNBUFFERED": "1", **settings}
        return Part(name, argv, self.logs / f"{name}.log", environ, ready)

    def pid(self, name: str) -> int | None:
        """Return the part's process id; None while it does not run."""
        for supervisor in self._supervisors:
            if name in supervisor.states():
                return supervisor.pid(name)
        raise KeyError(name)

    def pids(self) -> dict[str, int | None]:
        """Return the process ids of workers and sinks; None while one does not run."""
        return {name: self.pid(name) for name in (*self.workers.states(), *(f"sink-{kind}" for kind in SINKS))}

    def signal(self, name: str, number: signal.Signals, timeout_s: float = 20.0) -> int:
        """Send a signal to the part's process group, as soon as it runs; return the pid."""
        pid = wait_until(lambda: self.pid(name) or 0, timeout_s, f"{name} to run")
        os.killpg(pid, number)
        return pid

    def group_lag(self, group: str, topic: str) -> int:
        """Return a group's lag in records. Raises `KafkaException` if the broker is down."""
        return sum(max(high - done, 0) for high, done in self.group_offsets(group, topic).values())

    def group_offsets(self, group: str, topic: str) -> dict[int, tuple[int, int]]:
        """Return partition → (end, committed). Raises `KafkaException` if the broker is down."""
        consumer = Consumer({"bootstrap.servers": self.servers_address, "group.id": group, "log_level": 0})
        try:
            places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            found = {}
            for place in consumer.committed(places, timeout=10):
                low, high = consumer.get_watermark_offsets(place, timeout=10)
                found[place.partition] = high, max(place.offset, low)
            return found
        finally:
            consumer.close()

    def leaders(self, topic: str) -> dict[int, str]:
        """Return which broker leads each partition, as far as one knows; {} if none answers."""
        if len(self.brokers) == 1:
            return dict.fromkeys(range(PARTITIONS), self.brokers[0])
        consumer = Consumer({"bootstrap.servers": self.servers_address, "group.id": "chaos", "log_level": 0})
        try:
            found = consumer.list_topics(topic, timeout=_ASK_S).topics[topic].partitions
        except KafkaException:
            return {}
        finally:
            consumer.close()
        return {number: self.brokers[one.leader - 1] for number, one in found.items() if one.leader > 0}

    def ask_servers(self, *, clickhouse: bool) -> None:
        """Return if a broker, and ClickHouse, answer. Raises `KafkaException`, `OSError`."""
        consumer = Consumer({"bootstrap.servers": self.servers_address, "group.id": "chaos", "log_level": 0})
        try:
            consumer.list_topics(f"{PREFIX}.events", timeout=_ASK_S)
        finally:
            consumer.close()
        if clickhouse:
            query_rows(self.clickhouse_url, "SELECT 1")

    def newest_row_ms(self) -> int:
        """Return when the newest row of any sink was inserted, in epoch ms; 0 without rows.

        Raises `OSError` if ClickHouse is down.
        """
        tables = " UNION ALL ".join(f"SELECT max(landed_at) AS at FROM {DATABASE}.{table}" for table in TABLES)
        (row,) = query_rows(self.clickhouse_url, f"SELECT toUnixTimestamp64Milli(max(at)) AS ms FROM ({tables})")
        return max(int(row["ms"]), 0)

    def _broker(self, broker: BrokerProcess, listener: ProxiedListener) -> Part:
        def ready() -> bool:
            return broker_answers(broker.address) and _succeeds(lambda: apply_topics(self.kafka, len(self.brokers)))

        argv = [sys.executable, "-m", "tests.support.proxied_broker", *broker.options, *map(str, listener)]
        return self.part(broker.name, argv, ready)

    def _clickhouse(self, port: int) -> Part:
        from sessionary.sinks.clickhouse.migrate import apply_migrations

        def ready() -> bool:
            return clickhouse_answers(port) and _succeeds(lambda: apply_migrations(self.clickhouse))

        options = ["--data", str(self.folder / "clickhouse"), "--port", str(port)]
        endpoint = [sys.executable, "-m", "sessionary.infra.local.clickhouse.endpoint"]  # it asks for no password
        return self.part("clickhouse", [*endpoint, *options], ready)

    def _sink(self, kind: str, port: int) -> Part:
        # Half are static members, which rejoin at once; the others must time out first.
        # The waits for what has landed, ticks too, end within their limits.
        more = {
            "METRICS_PORT": str(port),
            "SINK_IDLE_SECONDS": "2",
            **({"INSTANCE": "s1"} if kind in SINKS[:2] else {}),
        }
        return self.part(f"sink-{kind}", [*_COMMAND, "serve", "sink", kind], None, more)

    def _worker(self, name: str, port: int) -> Part:
        # A fault is over when each partition has a newer transaction, be it of ticks alone.
        more = {"INSTANCE": name, "API_PORT": str(port), "TICK_COMMIT_INTERVAL_MS": "1000"} | self._read_by_proxy()
        operator = {OPERATOR_TOKEN: {"principal": "operator", "roles": ["operator"]}}
        tokens = {**{token: tenant for tenant, token in self.tokens.items()}, **operator}
        more["API_TOKENS"] = json.dumps(tokens)
        if name == CRAMPED_STORE:
            more |= {"STORE": "rocksdb", "STATE_DIR": str(self.disks[name].folder)}
        argv = [sys.executable, "-m", "sessionary.stream_processors"]
        return self.part(name, argv, lambda: api_ready(self.control_urls[name]), more)

    def _quotas(self, port: int) -> Part:
        limits = self.folder / "quotas.json"
        limits.write_text(json.dumps({"tenants": {QUOTA_TENANT: {"concurrent_runs": QUOTA_SLOTS}}}))
        more = {"INSTANCE": "q1", "API_PORT": str(port), "QUOTAS_FILE": str(limits)} | self._read_by_proxy()
        return self.part(QUOTAS, [*_COMMAND, "serve", "quotas"], lambda: api_ready(f"http://{LOOPBACK}:{port}"), more)

    def _read_by_proxy(self) -> dict[str, str]:
        """Return the variables of parts that send transactions."""
        return {} if self.late_requests is None else {"BOOTSTRAP_SERVERS": self.late_requests.address}


def _succeeds(step: Callable[[], object]) -> bool:
    try:
        step()
    except SessionaryError:
        return False
    return True


def now_ms() -> int:
    """Return the wall clock in ms; the broker on this machine uses the same."""
    return time.time_ns() // 1_000_000
