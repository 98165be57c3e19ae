"""The values that pass through the core: records in, places, and what a transaction writes."""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, final

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import Position
from sessionary.schemas.signatures import NO_KEYS, SigningKeys
from sessionary.schemas.types import RejectionReason

POSITION_KEY: Final = b"\x00position"  # of a partition's position record in the changelog
RECORD_OVERHEAD_BYTES: Final = 100  # of a record, besides its key and value
EMITTED_BYTES: Final = 1_000  # about those of an emitted record, besides repeated texts and bytes

CONTENT = frozenset({"snapshot_created", "checkpoint_saved"})
# Each begins or ends a transaction on the content.
TRANSACTIONS = frozenset({"txn_begun", "txn_committed", "txn_rolled_back"})
# The end of something that began before: accepted although the session is held.
COMPLETIONS = frozenset({"tool_call_succeeded", "tool_call_failed", "tool_call_resolved", "usage_recorded"})
# Events that are a processor's, and of no transition.
PROCESSOR_EVENTS = frozenset({"tool_call_unknown"})
WORK = (
    frozenset(name for name in PAYLOADS if not name.startswith("session_"))
    - {"heartbeat", "state_updated", "resources_released", "requests_repeated"}
    - CONTENT
    - TRANSACTIONS
    - PROCESSOR_EVENTS
) | {"session_activity"}

# A topic that a judge writes to; the name of its field in `TopicNames`.
Stream = Literal["audit", "rejected", "cleanup", "tasks", "migrations", "quotas"]


class Row(Protocol):
    """A row of the state; every row names the session that it belongs to."""

    @property
    def tenant_id(self) -> str:
        """The tenant."""
        ...

    @property
    def session_id(self) -> str:
        """The session, unique within its tenant."""
        ...


class LogRecord(NamedTuple):
    """A record of the events topic; `timestamp_ms` is its append time (ms since the epoch)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()

    def list_headers(self) -> Sequence[tuple[str, bytes]]:
        """Return `headers`; a record that unpacks its headers lazily overrides this method.

        The core reads headers by this method only: compiled code reads a field of a tuple by its
        place, and would ignore a subclass.
        """
        return self.headers

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the leader that appended the record; None if unknown."""
        return None

    @property
    def whole_bytes(self) -> int:
        """The record's size with its headers, in bytes. Reads the headers."""
        named = sum(len(name) + len(content) for name, content in self.list_headers())
        return len(self.key or b"") + len(self.value or b"") + named + RECORD_OVERHEAD_BYTES


class SkippedOffsets(NamedTuple):
    """The offsets that an operator decided to skip: from the position up to `next_offset`.

    In a log that was cut below the position, and grew again, records have taken the offsets of
    others that were folded. `replaced`: their first and last offset; the position stays then.
    """

    event_type: Literal["records_skipped", "log_gap_accepted", "log_truncation_accepted"]
    next_offset: int
    clock_ms: int  # the partition's clock is not below this afterwards
    reason: str  # for people
    principal: str  # who decided it
    records: Sequence[LogRecord] = ()  # those of these offsets that can be read
    replaced: tuple[int, int] | None = None


class ClockSetting(NamedTuple):
    """An operator's decision to set a partition's clock to a time of the broker.

    `until_offset`: of the record with that time; stamps below this offset do not move the clock.
    """

    clock_ms: int
    until_offset: int
    reason: str  # for people
    principal: str  # who decided it


# How the rows of a partition whose changelog cannot be trusted become right again: folded anew from
# the log; taken as they are; or taken with other topics, to which all records were copied.
RebuildMode = Literal["refold", "accept_rows", "accept_topics"]


class Rebuild(NamedTuple):
    """The rows of a partition are rebuilt."""

    mode: RebuildMode
    reason: str  # for people
    principal: str  # who decided it


class EventLog(NamedTuple):
    """The partition of the events topic from which a state is folded."""

    topic: str
    partition: int
    partitions: int  # of the topic
    keys: SigningKeys = NO_KEYS  # of the server roles


class OutputCause(NamedTuple):
    """The cause of an output: a record of the log, which of its outputs this is, and its batch."""

    partition: int
    offset: int
    n: int  # outputs of one record are numbered from 0
    now_ms: int  # the partition's clock
    batch_number: int


class Emitted(NamedTuple):
    """One record that a judge writes besides its rows; `key` is the Kafka record's key."""

    stream: Stream
    key: bytes | None
    record: Any


class RowLookup(Protocol):
    """The rows of a partition as they are in the batch under way."""

    def get_row(self, key: bytes) -> Any:
        """Return the row under a key, with its times after all repairs of the clock; or None."""
        ...

    def count_children(self, parent: bytes) -> int:
        """Return how many children the row under a key has."""
        ...


@final
class Decision:
    """The outcome of a record or a deadline.

    `facts` are for the home row, in order. `writes` are the new rows under other keys; a row of
    None is gone. `rejection`: the record is rejected; `duplicate`: it repeats an event.
    `only_counted`: it is rejected, and leaves no record.
    """

    __slots__ = ("duplicate", "facts", "only_counted", "rejection", "writes")

    def __init__(
        self,
        facts: Sequence[Any],
        rejection: RejectionReason | None = None,
        *,
        writes: Mapping[bytes, Any] | None = None,
        duplicate: bool = False,
        only_counted: bool = False,
    ) -> None:
        self.facts = facts
        self.writes = writes
        self.rejection = rejection
        self.duplicate = duplicate
        self.only_counted = only_counted


class RowFate(NamedTuple):
    """The life cycle of a kind of rows, and whether they are counted by a label.

    A live row fires when it is due. One that is not live vanishes then, and may be packed before; a
    child vanishes with its parent, whether it is live or not.
    """

    live: bool
    is_packed: bool = False
    is_child: bool = False
    is_counted: bool = False


class DueRow(NamedTuple):
    """When a row is due (ms of log time; of no meaning for a child that is not live)."""

    key: bytes
    due_ms: int
    fate: RowFate


class DueRows(NamedTuple):
    """Rows of one fate, in any order: when each is due, as in `DueRow`, and its key."""

    fate: RowFate
    due_ms: list[int]
    keys: list[bytes]

    def pairs(self) -> list[tuple[int, bytes]]:
        """Return each row's moment and key."""
        return list(zip(self.due_ms, self.keys, strict=True))


class Counts(NamedTuple):
    """The outcomes of a batch's records, counted.

    `ticks` counts the records of processors: those that begin other rules, and verdicts on quotas,
    are among them. `rejected` counts rejected records; heartbeats that were rejected and only
    counted are the `fenced_beats`. The last four count the records for the topics of these names.
    """

    applied: int
    duplicate: int
    rejected: int
    audited: int
    timers: int
    ticks: int
    first_offset: int
    last_offset: int
    fenced_beats: int = 0
    cleanup: int = 0
    tasks: int = 0
    migrations: int = 0
    quotas: int = 0

    @property
    def records(self) -> int:
        """The number of records of the batch."""
        return self.applied + self.duplicate + self.rejected + self.fenced_beats + self.ticks


RECORDS_KEPT = 8_192  # 16 bytes each
EVENT_ID_KEPT = 128  # characters; a UUID has 36


class JudgedRecords:
    """The judged records of one batch, in the order of offsets; ticks are left out."""

    __slots__ = ("duplicates", "key_hashes", "offsets", "rejections")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.key_hashes = array("q")  # of the records' keys, within this process
        self.rejections: dict[int, RejectionReason] = {}  # by offset
        self.duplicates: dict[int, str] = {}  # by offset: the event's id

    def add_duplicate(self, offset: int, event_id: str) -> None:
        """Add an event's id to `duplicates`; '' for a long id, so that memory is bounded."""
        self.duplicates[offset] = event_id if len(event_id) <= EVENT_ID_KEPT else ""


class RecordVerdict(NamedTuple):
    """The outcome of a record. If both fields are None, it was applied."""

    rejection: RejectionReason | None
    duplicate_of: str | None  # the id of the event that it repeats; '' if it is too long to be kept


class RecentVerdicts:
    """The outcomes of at least the last 8,192 records that this worker judged."""

    def __init__(self) -> None:
        self._batches: deque[JudgedRecords] = deque()
        self._records = 0

    def add_batch(self, judged: JudgedRecords) -> None:
        """Add a committed batch; drop the oldest batches if enough records remain."""
        if not judged.offsets:
            return
        self._batches.append(judged)
        self._records += len(judged.offsets)
        while self._records - len(self._batches[0].offsets) >= RECORDS_KEPT:
            self._records -= len(self._batches.popleft().offsets)

    def find(self, offset: int, key: bytes) -> RecordVerdict | None:
        """Return the verdict on the record at `offset`; None if it is not kept.

        None too if the record there has another key.
        """
        for judged in reversed(self._batches):
            if offset < judged.offsets[0]:
                continue
            n = bisect_left(judged.offsets, offset)
            if n == len(judged.offsets) or judged.offsets[n] != offset or judged.key_hashes[n] != hash(key):
                return None
            return RecordVerdict(judged.rejections.get(offset), judged.duplicates.get(offset))
        return None


class BatchResult(NamedTuple):
    """The writes of one transaction; a row of None is deleted.

    The fields after `judged` only feed metrics: the reasons of rejected records; the delay of each
    timer after its deadline, and the deadline (log time); and the number of outages of the log
    after which no timer fires for a while. `judged` is for callers that wait for a record.
    `traceparents`: by offset, the trace contexts of events that audit and rejections report on.
    """

    rows: Mapping[bytes, Any]
    emitted: Sequence[Emitted]
    position: Position
    counts: Counts
    judged: JudgedRecords
    rejections: Sequence[RejectionReason] = ()
    timer_lateness_ms: Sequence[int] = ()
    timer_due_ms: Sequence[int] = ()
    outages: int = 0
    traceparents: Mapping[int, bytes] = MappingProxyType({})

    def records_on(self, stream: Stream) -> list[tuple[Any, Any]]:
        """Return key and record of everything written to one stream, in order."""
        return [(key, record) for name, key, record in self.emitted if name == stream]
