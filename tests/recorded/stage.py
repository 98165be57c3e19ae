"""The pipeline that is recorded: a broker, a processor, and a look at what is written so far."""

import json
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from sessionary.infra.environment import TENANTS
from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.infra.topics import apply_topics
from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import AuditRecord, CleanupRequest, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from tests.support import Processes, environment, wait_until
from tests.support.logs import log_folder

PARTITIONS = 2
OUTAGE_MS, OUTAGE_GRACE_MS = 2_000, 2_500
# Long enough that a session's events share transactions: each is a row of the changelog.
COMMIT_INTERVAL_MS = 200
TOPIC_PREFIX = "recorded"
_INSTANCE = "recorder"


class Stage:
    """Broker and processor; a context manager that ends both."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for the broker's data."""
        self._broker = LocalBroker(folder / "kafka", None, log_folder() / "recorded.broker.log")
        self._processes = Processes("recorded")
        self._processor: Child | None = None
        self.kafka = KafkaSettings(
            bootstrap_servers=self._broker.bootstrap_servers, topic_prefix=TOPIC_PREFIX, partitions=PARTITIONS
        )
        self._port = free_port()
        self._control_url = f"http://127.0.0.1:{self._port}"
        self.tokens = {tenant: f"token-{tenant}" for tenant in TENANTS}
        self.environ = environment(
            self.kafka,
            control_url=self._control_url,
            api_tokens=json.dumps({token: tenant for tenant, token in self.tokens.items()}),
        )

    def __enter__(self) -> Self:
        self._broker.start()
        self._broker.wait_ready()
        apply_topics(self.kafka)
        self.start_processor()
        wait_until(self._is_ready, 60, "the processor is ready", pause_s=0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.stop()
        self._broker.stop()

    def start_processor(self) -> None:
        """Start the processor; does not wait."""
        settings = {
            "instance": _INSTANCE,
            "api_port": str(self._port),
            "outage_ms": str(OUTAGE_MS),
            "outage_grace_ms": str(OUTAGE_GRACE_MS),
            "commit_interval_ms": str(COMMIT_INTERVAL_MS),
        }
        variables = self.environ | environment(**settings)
        self._processor = self._processes.start("sessionary.stream_processors", env=variables, name="processor")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._control_url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:  # not listening yet, or not ready: urllib's errors are below it
            return False

    def kill_processor(self) -> None:
        """Kill it, also in the middle of a transaction."""
        assert self._processor is not None
        self._processor.kill()

    def stop_processor(self) -> None:
        """Stop it in order."""
        assert self._processor is not None
        self._processor.stop(15.0)

    def restart_broker(self) -> None:
        """Kill the broker and start it again: every partition then has an outage. Blocks."""
        self._broker.kill()
        time.sleep(OUTAGE_MS / 1_000)
        self._broker.start()
        self._broker.wait_ready()


class Watch:
    """What the processor has committed so far, by record key. Thread-safe to read."""

    def __init__(self, kafka: KafkaSettings) -> None:
        topics = kafka.topics
        self._consumer = Consumer({**kafka.client_config(), "group.id": "watch", "enable.auto.commit": False})
        self._consumer.assign(
            [
                TopicPartition(topic, partition, OFFSET_BEGINNING)
                for topic in (topics.audit, topics.cleanup, topics.rejected)
                for partition in range(kafka.partitions)
            ]
        )
        # Every state that a session was in, and every transition: several may be committed at once.
        self.states: dict[bytes, set[str]] = defaultdict(set)
        self.taken: dict[bytes, set[str]] = defaultdict(set)
        self.cleanups: dict[bytes, list[str]] = defaultdict(list)
        self.transitions: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()
        self._consumer.close()

    def wait_for(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition on what was seen. AssertionError on a time-out."""
        wait_until(condition, timeout_s, what, pause_s=0.05)

    def _run(self) -> None:
        decoder = Decoder()
        while not self._closed.is_set():
            for message in self._consumer.consume(500, 0.05):
                value = message.value()
                if message.error() is None and isinstance(value, bytes):
                    self._take(message.key(), decoder.decode_record(value))

    def _take(self, key: str | bytes | None, record: object) -> None:
        place = key.encode() if isinstance(key, str) else key or b""
        match record:
            case AuditRecord():
                if record.transition is not None:
                    self.states[place].add(record.to_state)
                    self.taken[place].add(record.transition)
                    self.transitions[record.transition] += 1
            case CleanupRequest():
                self.cleanups[place].append(record.cleanup_id)
            case RejectedEvent():
                self.reasons[record.reason] += 1
