"""A partition's fold and its transactions, each within the topics' limits; without an oracle."""

from typing import Any

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.codec.record_sizes import batch_bytes
from sessionary.schemas.limits import FINISHED_RUN_DAYS
from sessionary.schemas.records import AuditRecord, RejectedEvent, RulesActivation, SessionState
from sessionary.schemas.rules import newest_known
from sessionary.schemas.topics import record_bytes_limits
from sessionary.schemas.types import RuleSet
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.tombstones import DAY_MS
from sessionary.stream_processors.runtime.job import PlainProduced, processor_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.auditor.signatures import SECRETS
from tests.core.oracle_rig import START_MS, outcome_text
from tests.support.event_factory import TICK, EventFactory
from tests.support.signing import Headers, with_signature

_SETTINGS = ProcessorSettings(partitions=1, signing_keys=SECRETS)
JOB = processor_job(_SETTINGS)
FINISHED_RUN_MS = FINISHED_RUN_DAYS * DAY_MS
LIMITS = {topic: record_bytes_limits()[field] for field, topic in _SETTINGS.topics._asdict().items()}


def write_result(outcome: BatchResult) -> list[PlainProduced]:
    """Return a transaction's records; fail if a topic would refuse one."""
    transaction = JOB.transaction(0, outcome, 0)
    written = [*transaction.records, *transaction.elsewhere]
    for topic, key, value, headers in written:
        named = sum(len(name) + len(content or b"") + 10 for name, content in headers or ())
        assert batch_bytes(key, value) + named <= LIMITS[topic], topic
    return written


def activation_bytes(rules: RuleSet, principal: str = "ops") -> bytes:
    """Return a record with which rules begin."""
    return encode_record(RulesActivation(*rules, principal, "w1"))


def activation_record(offset: int, at_ms: int, rules: RuleSet) -> LogRecord:
    """Return that record as the log has it, signed."""
    value = activation_bytes(rules)
    return LogRecord(offset, at_ms, None, value, with_signature(None, value))


class FoldRig:
    """A fold of one partition; `at` is the next record's append time in ms."""

    def __init__(self) -> None:
        self.fold: PartitionState = JOB.new_state(0)
        self.fold.finish_loading()
        self.at = START_MS
        self.offset = 0
        self.written: list[PlainProduced] = []
        self.outcome: BatchResult | None = None

    def append(self, key: bytes | None, value: bytes | None, headers: Headers = ()) -> str:
        """Fold a record as a batch of its own; return `applied`, `rejected late` and the like.

        What only a server role may write is signed.
        """
        headers = with_signature(key, value, headers)
        return outcome_text(self.append_batch(LogRecord(self.offset, self.at, key, value, headers)))

    def append_batch(self, *records: LogRecord) -> BatchResult:
        """Fold records as one batch."""
        batch = self.fold.begin()
        assert all(batch.apply(record) for record in records)
        self.offset += len(records)
        self.outcome = batch.finish()
        self.written = write_result(self.outcome)
        self.fold.merge(batch)
        return self.outcome

    def send(self, agent: EventFactory, event_type: str, envelope: dict[str, Any] | None = None, **fields: Any) -> str:
        """Send an agent's event; it then knows its epoch and snapshot."""
        outcome = self.append(agent.key.encoded(), agent.event_bytes(event_type, envelope, **fields))
        row = self.fold.rows.get(agent.key.encoded())
        if isinstance(row, SessionState):
            agent.epoch, agent.head = row.epoch, row.snapshot.snapshot_id
        return outcome

    def start(self, agent: EventFactory, **created: Any) -> None:
        """Bring a session to Active; `created` are fields of its first event."""
        assert self.send(agent, "session_created", **created) == "applied"
        for phase in ("validating", "connecting"):
            assert self.send(agent, "session_phase_changed", phase=phase) == "applied"
        assert self.send(agent, "session_started") == "applied"

    def advance(self, ms: int) -> None:
        """Let time pass, with a tick each second."""
        for _ in range(ms // 1_000):
            self.at += 1_000
            self.append(None, TICK)

    def announce(self, rules: RuleSet, principal: str = "ops") -> BatchResult:
        """Announce rules, in a batch without records."""
        batch = self.fold.begin()
        batch.announce_rules(rules, principal)
        self.outcome = batch.finish()
        self.written = write_result(self.outcome)
        self.fold.merge(batch)
        return self.outcome

    def activate(self, rules: RuleSet, principal: str = "ops") -> None:
        """Announce rules, and append the record with which they begin."""
        self.announce(rules, principal)
        assert self.append(None, activation_bytes(rules, principal)) == "tick"

    def row_of(self, agent: EventFactory) -> SessionState:
        row = self.fold.rows[agent.key.encoded()]
        assert isinstance(row, SessionState)
        return row

    def row_bytes(self, agent: EventFactory) -> int:
        """Return the bytes of a session's changelog record: key and value."""
        key = agent.key.encoded()
        return len(key) + len(encode_record(self.fold.rows[key], self.fold.position.rules.version))

    def letter(self) -> RejectedEvent:
        """Return the rejected record that was just written."""
        (letter,) = (record for record in self._records() if isinstance(record, RejectedEvent))
        return letter

    def audits(self) -> list[AuditRecord]:
        """Return the audit records that were just written."""
        return [record for record in self._records() if isinstance(record, AuditRecord)]

    def _records(self) -> list[object]:
        decoder = Decoder(rules=newest_known().version)
        return [decoder.decode_record(value) for _, _, value, _ in self.written if value is not None]
