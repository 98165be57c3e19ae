"""Writers of scripted sessions: any event, with any field, key, partition and header bent."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionKey, partition_of
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import EVENT_BYTES_MAX
from sessionary.schemas.types import Limits, Snapshot
from tests.recorded.stage import Watch
from tests.support.event_factory import EventFactory, payload_of
from tests.support.signing import with_signature

Headers = Sequence[tuple[str, str | bytes | None]]
# What a script waits for: seconds, or a condition.
Wait = float | Callable[[], bool]
Script = Generator[Wait, None, None]

STEADY = Limits(
    init_ms=120_000,
    model_ms=120_000,
    tool_ms=30_000,
    network_ms=15_000,
    idle_ms=300_000,
    max_duration_ms=600_000,
    grace_ms=120_000,
    hold_ms=120_000,
    recovery_ms=120_000,
    # Long enough that a slow processor still hears a confirmation.
    archive_delay_ms=3_000,
    release_limit_ms=20_000,
    override=True,
)
OWN_KEY = b"own"  # stands for the key of the actor's session
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class RawSender:
    """Sends records as they are given, in order. `flush` raises if a delivery failed."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.partitions = kafka.partitions
        self._topic = kafka.topics.events
        self._failed: list[str] = []
        self._producer = Producer(
            {
                **kafka.client_config(),
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.max.bytes": EVENT_BYTES_MAX,
            }
        )

    def send(self, key: bytes | None, value: bytes | None, headers: Headers = (), partition: int = -1) -> None:
        """Hand a record over; -1 leaves the partition to the key."""
        self._producer.produce(
            self._topic, value, key, partition, headers=list(headers), on_delivery=self._check_delivery
        )
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait for all acknowledgements."""
        left = self._producer.flush(60)
        if left or self._failed:
            raise RuntimeError(f"{left} records not acknowledged, failed: {self._failed[:3]}")

    def _check_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed.append(str(error))


class Actor:
    """One producer of one scripted session."""

    def __init__(
        self,
        sender: RawSender,
        watch: Watch,
        name: str,
        *,
        tenant: str = "acme",
        service: str = "billing",
        producer: str = "p1",
    ) -> None:
        self._sender, self._watch, self._name, self._tenant = sender, watch, name, tenant
        self.agent = EventFactory(name, tenant, service, producer)
        self.key = self.agent.key.encoded()
        self.classes: tuple[str, ...] = ("personal",)

    def beside(self, producer: str, service: str | None = None) -> "Actor":
        """Return another producer of the session; of the same service unless one is named."""
        named = self.agent.service if service is None else service
        other = Actor(self._sender, self._watch, self._name, tenant=self._tenant, service=named, producer=producer)
        other.classes, other.agent.epoch, other.agent.head = self.classes, self.agent.epoch, self.agent.head
        return other

    def made(self, event_type: str, envelope: dict[str, Any] | None = None, **fields: Any) -> tuple[bytes, Headers]:
        """Return the next event's bytes and the headers that belong to it."""
        usual = {
            "occurred_at": time.time_ns() // 1_000,
            "data_classes": self.classes,
            "schema_version": 1,
            "server_version": None,
            "protocol_version": None,
        }
        written = self.agent.envelope(event_type, **(usual | (envelope or {})))
        payload = self._chained(event_type, payload_of(event_type, **fields))
        value = encode_event(Event(written, payload))
        return value, list(with_signature(self.key, value, event_headers(written)))

    def _chained(self, event_type: str, payload: Any) -> Any:
        """Let a snapshot without a parent follow the last one that was sent, taken or not."""
        content: Snapshot | None = getattr(payload, "snapshot", None)
        if content is None or (event_type == "session_created" and self.agent.head is not None):
            return payload
        parent = content.parent_snapshot_id or self.agent.head
        self.agent.head = content.snapshot_id
        return payload._replace(snapshot=content._replace(parent_snapshot_id=parent))

    def say(
        self,
        event_type: str,
        envelope: dict[str, Any] | None = None,
        *,
        headers: Headers | None = None,
        key: bytes | None = None,
        partition: int = -1,
        **fields: Any,
    ) -> None:
        """Send the next event; `headers`, `key` and `partition` replace what would be right."""
        value, usual = self.made(event_type, envelope, **fields)
        self._sender.send(self.key if key is None else key, value, usual if headers is None else headers, partition)

    def throw(
        self, value: bytes | None, headers: Headers = (), *, key: bytes | None = OWN_KEY, partition: int = -1
    ) -> None:
        """Send bytes that need not be an event; under the session's key unless `key` is given."""
        self._sender.send(self.key if key is OWN_KEY else key, value, headers, partition)

    def wrong_partition(self) -> int:
        """Return a partition that is not this session's."""
        return (partition_of(self.key, self._sender.partitions) + 1) % self._sender.partitions

    def begin(self, **limits: Any) -> None:
        """From creation to Active; `limits` replace some of `STEADY`."""
        self.say("session_created", limits=STEADY._replace(**limits))
        self.say("session_phase_changed", phase="validating")
        self.say("session_phase_changed", phase="connecting")
        self.say("session_started")

    def resume(self, snapshot_id: str | None = None) -> None:
        """Resume, and speak with the next epoch."""
        self.say("session_resumed", snapshot_id=snapshot_id)
        self.agent.epoch += 1

    def confirm(self, n: int = -1, **fields: Any) -> None:
        """Confirm the n-th clean-up that was asked for."""
        self.say("resources_released", cleanup_id=self._watch.cleanups[self.key][n], **fields)

    def reached(self, state: str) -> Callable[[], bool]:
        """Return whether the session has been in this state, by the audit trail."""
        return lambda: state in self._watch.states[self.key]

    def took(self, transition: str) -> Callable[[], bool]:
        """Return whether the session has taken this transition, by the audit trail."""
        return lambda: transition in self._watch.taken[self.key]

    def asked(self, cleanups: int = 1) -> Callable[[], bool]:
        """Return whether so many clean-ups were asked for."""
        return lambda: len(self._watch.cleanups[self.key]) >= cleanups


def keys_of_partition(partition: int, partitions: int, tenant: str) -> Iterator[SessionKey]:
    """Yield session keys of one partition, with ids that count up: they are stored in few bytes."""
    n = 0
    while True:
        key = SessionKey(tenant, f"00000000-0000-4000-8000-{n:012x}")
        if partition_of(key.encoded(), partitions) == partition:
            yield key
        n += 1
