"""When a partition's records are written, and the commits before: the intent protocol; pure.

    commit offset a, metadata {"v":1,"to":b,...}   the block before is stored, a..b comes next
    insert a..b as one block, token = ...:a-b
    commit offset b+1, no block in the metadata    only if nothing follows (idle, revoked, stopped)

Blocks of idle records (ticks, heartbeats) are small, so several partitions may share an insert.
Then each partition's intent names the whole block: {...,"with":[[partition,first,last],...]}. All
intents are in one commit. A sink that finds one of them reads all of the block's ranges again, also
those of partitions that other sinks own, and inserts the same rows under the same token.

The metadata also names the topic by its id: offsets of a topic that was deleted and created again
say nothing about its records.

After a crash, the committed offset and metadata name the block that may be stored wholly, in part
or not at all. The next owner collects exactly a..b and inserts it under the same token: ClickHouse
drops what it already has. The highest offset found in ClickHouse would say less, because parts of
a block become visible one by one and views lag behind them.

States of one partition during one assignment:

    replaying ──(a..b stored)──▶ collecting ──(due)──▶ in flight ──(stored)──▶ collecting …
"""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from operator import itemgetter, lt
from typing import Final, NamedTuple

from sessionary.sinks.core.block_due import BlockLimits, WaitingRecords, is_block_due
from sessionary.sinks.core.rows.shared import RawRecord

# Functions over many records at once; pure.
#
# Each row passes here. A loop in C over a list takes a third of the time of one in Python that
# calls a method of each record.


_offset: Final = itemgetter(RawRecord._fields.index("offset"))
_key_and_value: Final = itemgetter(RawRecord._fields.index("key"), RawRecord._fields.index("value"))


def ascending_records(records: Sequence[RawRecord], first: int) -> Sequence[RawRecord]:
    """Return the records from offset `first` on, in their order, each beyond those before it."""
    offsets = list(map(_offset, records))
    if not offsets or (offsets[0] >= first and all(map(lt, offsets, islice(offsets, 1, None)))):
        return records
    found = []
    for record in records:
        if record.offset >= first:
            first = record.offset + 1
            found.append(record)
    return found


def record_sizes(records: Sequence[RawRecord]) -> list[int]:
    """Return the bytes of key and value of each record."""
    return [len(key or b"") + len(value or b"") for key, value in map(_key_and_value, records)]


def count_up_to(records: Sequence[RawRecord], last: int) -> int:
    """Return how many records have offsets up to `last`; they are in the order of their offsets."""
    return bisect_right(records, last, key=_offset)


def count_block(records: Sequence[RawRecord], rows: int, size: int) -> int:
    """Return how many of the first records make a block of so many rows, and bytes, at most.

    The last one may exceed the bytes. Both limits are at least 1.
    """
    sums = list(accumulate(record_sizes(records[:rows])))
    return min(len(sums), bisect_left(sums, size) + 1)


_VERSION = 1


class Piece(NamedTuple):
    """One partition's part of a block that partitions share: offsets `first` to `last`."""

    partition: int
    first: int
    last: int


class Intent(NamedTuple):
    """A declared block: the `records` records from the committed offset to `to`, inclusive.

    If partitions share the block, `records` counts those of all pieces.
    `at_ms`: wall clock of the declaration. `topic_id`: None if the topic has none; then the block's
    token has none either.
    """

    to: int
    records: int
    at_ms: int
    topic_id: str | None = None
    pieces: tuple[Piece, ...] = ()  # of the whole block, if partitions share it

    def to_metadata(self) -> str:
        """Return the commit's metadata: about 90 bytes, and up to 40 for each piece.

        Kafka allows 4,096.
        """
        shared = {"with": self.pieces} if self.pieces else {}
        return _dump_metadata(self.topic_id, to=self.to, n=self.records, at=self.at_ms, **shared)


class CommitMetadata(NamedTuple):
    """A commit's values besides its offset. Both are None if its metadata is not ours."""

    topic_id: str | None = None
    intent: Intent | None = None


def _dump_metadata(topic_id: str | None, **intent: object) -> str:
    return json.dumps({"v": _VERSION, "topic": topic_id, **intent}, separators=(",", ":"))


def parse_metadata(metadata: str | None) -> CommitMetadata:
    """Read a commit's metadata; tools that reset offsets remove it.

    A block may then be written under two tokens. Its rows still collapse, because they are equal
    in every key column.
    """
    try:
        fields = json.loads(metadata or "")
        if fields["v"] != _VERSION:
            return CommitMetadata()
        topic_id = None if fields["topic"] is None else str(fields["topic"])
        if "to" not in fields:
            return CommitMetadata(topic_id)
        pieces = tuple(Piece(*map(int, piece)) for piece in fields.get("with", ()))
        intent = Intent(int(fields["to"]), int(fields["n"]), int(fields["at"]), topic_id, pieces)
    except (ValueError, TypeError, KeyError):
        return CommitMetadata()
    return CommitMetadata(topic_id, intent)


class RecordBlock(NamedTuple):
    """The records of one insert, offsets `first` to `last`.

    `records` is empty if a replay's records are no longer in the log.
    """

    first: int
    last: int
    records: Sequence[RawRecord]
    intent: Intent | None  # to be committed at `first` before the insert; None if it already is
    replay_of: Intent | None = None
    topic_id: str | None = None
    pieces: tuple[Piece, ...] = ()  # if partitions share it; `first` and `last` are the first one's

    def insert_token(self, group: str, topic: str, partition: int) -> str:
        """Return the deduplication token: the same for the same records of the same group."""
        log = topic if self.topic_id is None else f"{topic}:{self.topic_id}"
        if self.pieces:
            return f"{group}:{log}:shared:{hashlib.sha256(json.dumps(self.pieces).encode()).hexdigest()}"
        return f"{group}:{log}:{partition}:{self.first}-{self.last}"


def share_block(blocks: Mapping[int, RecordBlock]) -> RecordBlock:
    """Return blocks by partition as one block that the partitions share, in their order."""
    pieces = tuple(Piece(partition, block.first, block.last) for partition, block in sorted(blocks.items()))
    records = [record for piece in pieces for record in blocks[piece.partition].records]
    first = blocks[pieces[0].partition]
    return first._replace(records=records, intent=None, pieces=pieces)


class PartitionPlan:
    """The records and offsets of one partition during one assignment.

    Each assignment makes a new plan, so no buffer outlives its assignment. Not thread-safe.
    `now` is always monotonic time in seconds.
    """

    def __init__(
        self, limits: BlockLimits, committed: int | None, metadata: str | None, topic_id: str | None = None
    ) -> None:
        """`committed`: the group's offset for the partition, None if it has none.

        `topic_id`: of the topic as it is; None if it has none.
        """
        self._limits = limits
        self._committed = committed
        self._topic_id = topic_id
        self._committed_topic_id, self._intent = parse_metadata(metadata) if committed is not None else CommitMetadata()
        self._replay = self._intent
        self._records: list[RawRecord] = []
        self._bytes = 0
        self._since: float | None = None  # the first waiting record arrived
        self._busy_since: float | None = None  # the first one that is not idle arrived
        self._busy_ms: int | None = None  # log time of that one
        self._idle_until = 0.0  # idle records alone may wait until then
        self._flight_behind_ms: int | None = None  # as `behind_since_ms`, of the block in flight
        self._next = committed  # next offset to be read, as far as is known
        self._end: int | None = None  # end of the log; None while unread records lie before it
        self._high = 0  # the log is known to reach this offset
        self.in_flight: RecordBlock | None = None
        self.landed = committed  # every record below this offset is in ClickHouse

    @property
    def is_replaying(self) -> bool:
        """Whether the declared block of a former owner is still to be written."""
        return self._replay is not None

    @property
    def shared_replay(self) -> Intent | None:
        """The declared block of a former owner, if partitions share it and it is to be written."""
        return self._replay if self._replay is not None and self._replay.pieces else None

    @property
    def waiting_records(self) -> int:
        """Number of records collected and not yet in flight."""
        return len(self._records)

    @property
    def holds_idle_only(self) -> bool:
        """Whether records wait, all of them idle, and none is in flight."""
        return self.in_flight is None and self._replay is None and bool(self._records) and self._busy_since is None

    @property
    def is_busy(self) -> bool:
        """Whether something is in flight, or records wait that are not all idle."""
        return self.in_flight is not None or self.is_replaying or self._busy_since is not None

    @property
    def behind_since_ms(self) -> int | None:
        """Log time of the oldest record held that is not in ClickHouse; None if none is held.

        An idle record counts from the end of its wait.
        """
        if self.in_flight is not None and self.in_flight.records:
            return self._flight_behind_ms
        return self._waiting_behind_ms()

    def _waiting_behind_ms(self) -> int | None:
        if not self._records:
            return None
        if self._limits.is_idle is None:
            return self._records[0].timestamp_ms
        idle_end_ms = self._records[0].timestamp_ms + round(self._limits.idle_seconds * 1_000)
        return idle_end_ms if self._busy_ms is None else min(idle_end_ms, self._busy_ms)

    @property
    def next_offset(self) -> int:
        """The next offset to be read, behind transaction markers at the end of the log."""
        return self._next or 0

    @property
    def at_end(self) -> bool:
        """Whether the log has been read to its end."""
        return self._end is not None

    def add_records(self, records: Sequence[RawRecord], now: float, high: int = 0, now_ms: int | None = None) -> None:
        """Append the next records, in their order; drop records that were appended before.

        `high`: the log's end offset, as far as is known. `now_ms`: wall clock; the wait of an idle
        record begins at its log time. None: it begins now.
        """
        former, found = len(self._records), ascending_records(records, self._next or 0)
        if not found:
            return
        self._records += found
        self._bytes += sum(record_sizes(found))
        self._next, self._end, self._high = found[-1].offset + 1, None, high
        if self._since is None:
            age_s = 0.0 if now_ms is None else (now_ms - self._records[0].timestamp_ms) / 1_000
            idle_s = self._limits.idle_seconds
            self._since, self._idle_until = now, now + min(idle_s, max(0.0, idle_s - age_s))
        if self._busy_since is None:
            self._note_busy(former, now)

    def _note_busy(self, first: int, now: float) -> None:
        """Note the first waiting record that is not idle, if one came; `first`: of the new ones."""
        is_idle = self._limits.is_idle
        for record in islice(self._records, first, None):
            if is_idle is None or not is_idle(record.value):
                self._busy_since, self._busy_ms = now, record.timestamp_ms
                return

    def skip_to(self, offset: int) -> None:
        """Continue at `offset`: the log has no record before it any more."""
        self._next, self._end = max(offset, self._next or 0), None

    def reached_end(self, offset: int) -> None:
        """Record that the log currently ends before `offset` (transaction markers included)."""
        self._end = max(offset, self._next or 0)
        self._next = self._end

    def is_due(self, now: float) -> bool:
        """Whether a block should be taken now."""
        if self.in_flight is not None:
            return False
        if self._replay is not None:
            return self._next is not None and self._next > self._replay.to
        if self._since is None:
            return False
        waiting = WaitingRecords(
            len(self._records), self._bytes, self._since, self._idle_until, self._busy_since, self._is_far_behind()
        )
        return is_block_due(waiting, self._limits, now)

    def _is_far_behind(self) -> bool:
        return self._next is not None and self._high - self._next > len(self._records)

    def take_block(self, now: float, now_ms: int) -> RecordBlock:
        """Freeze the next block: it stays in flight, unchanged, until `mark_written`.

        Call it only if `is_due`, or with `waiting_records`. `now_ms`: wall clock, for the intent.
        """
        assert self.in_flight is None
        replay, self._flight_behind_ms = self._replay, self._waiting_behind_ms()
        if replay is not None:
            assert self._committed is not None
            records = self._cut_records(count_up_to(self._records, replay.to))
            self.in_flight = RecordBlock(self._committed, replay.to, records, None, replay, replay.topic_id)
        else:
            records = self._cut_full_block()
            first, last = records[0].offset, records[-1].offset
            intent = Intent(last, len(records), now_ms, self._topic_id)
            self.in_flight = RecordBlock(first, last, records, intent, None, self._topic_id)
        # The remaining records came with a full block, or with a replay: they do not wait.
        self._since = self._busy_since = now if self._records else None
        self._busy_ms = self._records[0].timestamp_ms if self._records else None
        return self.in_flight

    def _cut_full_block(self) -> list[RawRecord]:
        """Cut records up to the limits; if these are all, without a look at each."""
        limits, waiting = self._limits, self._records
        if len(waiting) > limits.rows or self._bytes - waiting[-1].size >= limits.bytes:
            return self._cut_records(count_block(waiting, limits.rows, limits.bytes))
        return self._cut_records(len(waiting))

    def _cut_records(self, count: int) -> list[RawRecord]:
        cut, self._records = self._records[:count], self._records[count:]
        self._bytes = sum(record_sizes(self._records))
        return cut

    def share_intent(self, shared: RecordBlock) -> None:
        """Let the intent of the block in flight name the whole block that partitions share."""
        assert self.in_flight is not None
        intent = self.in_flight.intent
        assert intent is not None
        intent = intent._replace(records=len(shared.records), pieces=shared.pieces)
        self.in_flight = self.in_flight._replace(intent=intent)

    def mark_replayed(self) -> None:
        """Record that a shared block of a former owner is in ClickHouse. Nothing was added yet."""
        assert self._replay is not None
        self.landed = self._next = self._replay.to + 1
        self._replay = None

    def mark_declared(self) -> None:
        """Record that the intent of the block in flight was committed."""
        assert self.in_flight is not None
        self._committed, self._intent = self.in_flight.first, self.in_flight.intent
        self._committed_topic_id = self._topic_id
        self.in_flight = self.in_flight._replace(intent=None)

    def mark_written(self) -> None:
        """Record that the block in flight is in ClickHouse."""
        assert self.in_flight is not None
        self.landed = self.in_flight.last + 1
        self.in_flight = None
        self._replay = None

    def closing_commit(self) -> int | None:
        """Return the offset to commit with `closing_metadata` if nothing is under way, else None.

        None also if the commit would change nothing. Meant for partitions that are revoked or
        stopped, or hold idle records at the most: the next owner reads waiting records again. The
        intent of an unwritten block must stay committed.
        """
        if self.in_flight is not None or self._replay is not None:
            return None
        offset = self._end if self._end is not None and not self._records else self.landed
        is_committed = offset == self._committed and self._committed_topic_id == self._topic_id
        return None if offset is None or (is_committed and self._intent is None) else offset

    @property
    def closing_metadata(self) -> str:
        """The metadata of a commit without a block: the topic's id."""
        return _dump_metadata(self._topic_id)

    def mark_closed(self, offset: int) -> None:
        """Record that the offset of `closing_commit` was committed."""
        self._committed, self._intent, self._committed_topic_id = offset, None, self._topic_id
        self.landed = offset
