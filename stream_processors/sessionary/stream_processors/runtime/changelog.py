"""Reads a partition's changelog to its end: how an opening partition learns its state.

Only the partition's end (`_PARTITION_EOF`) ends the reading: a quiet moment does not. Committed
records only, so the end is that of the last stable record. The former owner's open transaction was
ended when this owner's producer was initialised. Another producer's hides all that follows it, and
the reading never takes an old state for the last one: it fails, to be repeated.

A reading that fails loses nothing: the store keeps how far it came, with the rows. And a client of
librdkafka may lose its last broker for ever. So a reader that delivers nothing, although a new
client hears the broker, is replaced by that one.
"""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.headers import Headers, read_each_headers
from sessionary.schemas.kafka.clients import close_in_background, describe_unreadable_batch, is_unreadable_batch
from sessionary.schemas.records import Position
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.stream_processors.core.model import POSITION_KEY, DueRows
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.rules_change import require_known_rules
from sessionary.stream_processors.runtime.log_identity import NO_IDS, TopicIds, is_other_topic
from sessionary.stream_processors.runtime.transaction import Seal, transactional_id
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.startup import require_roomy_topics
from sessionary.stream_processors.store.packed_rows import DUE_HEADER, ChangelogRecords, RowCodec
from sessionary.stream_processors.store.stores import SavedPosition, Store, is_usable

_log = role_logger(__name__)
# Two fetches: one that is loaded, and the next one meanwhile. More is memory that stays.
PREFETCH_KIB = 1_024
# The memory of such a batch, in the driver and in ours, stays in a core's cache, and is free for
# the next one.
_BATCH_RECORDS = 500
RENEW_S = 10.0  # without a record, and a new client is asked: longer than any fetch takes
_SILENCE_MAX_S = 60.0
_TIMEOUT_S = 10.0
_ASK_S = 5.0
_UNREADABLE_MAX = 100  # records without a later one: a changelog of another release is not read to its end
UNFINISHED: Final = -1  # the row count of a position that a rebuild writes before its last transaction
# Trouble on the way to the broker; librdkafka keeps trying by itself.
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


def reader_of(settings: ProcessorSettings) -> Consumer:
    """Return a consumer outside of any group; it reads committed records and reports the end."""
    return Consumer(
        {
            **settings.reader_config(),
            **settings.opening_config(),
            # Several partitions are read at a time, and a probe of a log reads one record. The
            # default of 64 MiB would be fetched for each of them.
            "queued.max.messages.kbytes": PREFETCH_KIB,
            # It reads up to the end once: there is nothing to wait for.
            "fetch.wait.max.ms": 1,
        }
    )


@dataclass
class RecoveryProgress:
    """How far a recovery is. Its thread writes, others read."""

    end_offset: int | None = None  # of the changelog; None before it is read
    next_offset: int = 0
    found_damaged_store: bool = False  # whether the local store had other rows than its position record counts

    @property
    def remaining_records(self) -> int | None:
        """How many offsets of the changelog are still to be read; None if it is not being read."""
        end_offset = self.end_offset  # read once: another thread writes it
        return None if end_offset is None else max(0, end_offset - self.next_offset)


def recover(
    settings: ProcessorSettings,
    state: PartitionState,
    store: Store,
    row_codec: RowCodec,
    wanted: Callable[[], bool],
    progress: RecoveryProgress,
    topic_ids: TopicIds = NO_IDS,
    changelog_end: int = 0,
) -> int:
    """Load `store` with the changelog's newer records, and load `state`; return the end.

    `row_codec` converts a record's value and its header `due` to the form in the store. After a
    failure, loaded records need not be read again: the store's `loading_mark` says how far it came.
    `topic_ids` and the high watermark `changelog_end` were asked for since the former owner was
    fenced.

    Blocks. Raises `Halted` for a record that cannot be read, for missing rows, for records that an
    open transaction hides, for a position of other topics, for a changelog that ends before the
    store, and for rules that this release does not know, `Lost` if the broker stays silent or the
    partition is no longer `wanted`.
    """
    reading = _ChangelogReading(settings, state, store, row_codec, wanted, progress, topic_ids, changelog_end)
    changelog_next = reading.load_rows()
    due_rows = _find_due_rows(store, state.position)
    if due_rows is None:
        progress.found_damaged_store = reading.went_on
        _log.warning(
            "partition %(partition)d: its store differs from its changelog, which is read from the start",
            partition=state.partition,
            offset=state.position.next_offset,
        )
        store.wipe()
        changelog_next = reading.load_rows()
        due_rows = _find_due_rows(store, state.position)
        if due_rows is None:
            fault = _changelog_incomplete(state, store)
            store.wipe()  # the next attempt must not continue from these rows
            raise fault
    state.finish_loading(due_rows)
    give_back_memory()
    return changelog_next


def read_as_is(
    settings: ProcessorSettings,
    state: PartitionState,
    store: Store,
    row_codec: RowCodec,
    wanted: Callable[[], bool],
    changelog_end: int,
) -> list[bytes]:
    """Load an empty `store` and `state` with all that a changelog has, whether it is whole or not.

    Returns the keys whose last record cannot be read; the store has no row of them. `changelog_end`
    is the high watermark. Blocks. Raises `Halted` if a batch cannot be read, if an open transaction
    hides records, and for rules that this release does not know; `Lost` as `recover` does.
    """
    reading = _ChangelogReading(
        settings, state, store, row_codec, wanted, RecoveryProgress(), NO_IDS, changelog_end, is_lenient=True
    )
    reading.load_rows()
    give_back_memory()
    return [key for key in reading.unreadable if key != POSITION_KEY]


def give_back_memory() -> None:
    """Return to the system what the driver has freed; the C library keeps it otherwise.

    Does nothing with a C library that cannot.
    """
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _find_due_rows(store: Store, position: Position) -> list[DueRows] | None:
    """Return when the rows are due; None if they differ from the count in the position record."""
    expected = position.row_count, position.row_checksum
    # A store that was filled from the start has no sum yet; one that a crash left ahead of its
    # position has the right rows, but not their sum.
    counts = expected != (None, None) and store.row_sum != expected
    due_rows = store.survey_rows(counts=counts).due_rows
    return None if counts and store.row_sum != expected else due_rows


def _changelog_incomplete(state: PartitionState, store: Store) -> Halted:
    position, found = state.position, store.count_again()
    if position.row_count == UNFINISHED:
        return Halted(
            "changelog_incomplete",
            f"partition {state.partition}: a rebuild of its rows was not finished, so some are as before it. Begin it "
            f"again, with the same options: sessionary partition rebuild {state.partition}",
        )
    return Halted(
        "changelog_incomplete",
        f"partition {state.partition}: the position record counts {position.row_count} rows with checksum "
        f"{position.row_checksum}, but the changelog has {found.rows} with {found.checksum}. Rows "
        "and position are not of one moment. Possible causes: the broker lost records of the changelog (unclean leader "
        "election, power loss, or a shorter retention), another program wrote old records to it (a restore, a mirror), "
        "or a transaction was committed in part. Bring the replica back that has the right records; or rebuild the "
        f"rows: sessionary partition rebuild {state.partition} --dry-run",
    )


def position_lost(partition: int, changelog: str, found: str) -> Halted:
    """Return the fault of a changelog that lacks a partition's last position; `found` shows it."""
    return Halted(
        "position_lost",
        f"partition {partition}: the changelog {changelog} {found}. Possible causes: the broker lost records of the "
        "changelog (unclean leader election, power loss, or the abort of a transaction whose commit was lost), another "
        "program wrote an old position to it, or it was deleted and made again. Judged from there, events would be "
        "judged twice, and those of sessions whose first events are deleted wrongly. Bring the replica back that has "
        f"the records, then run sessionary partition retry {partition}; or rebuild the rows: sessionary partition "
        f"rebuild {partition} --dry-run",
    )


def _furthest_position(store: Store) -> SavedPosition | None:
    """Return up to where a store holds the changelog, saved or only loaded; None if it is empty."""
    known = [found for found in (store.saved_position, store.loading_mark) if found is not None]
    return max(known, key=lambda found: found.changelog_next, default=None)


class _ChangelogReading:
    """Reads one changelog into a store and a state."""

    def __init__(
        self,
        settings: ProcessorSettings,
        state: PartitionState,
        store: Store,
        row_codec: RowCodec,
        wanted: Callable[[], bool],
        progress: RecoveryProgress,
        topic_ids: TopicIds,
        changelog_end: int,
        *,
        is_lenient: bool = False,
    ) -> None:
        """`is_lenient`: halt for no record that is missing, or cannot be decoded."""
        self.unreadable: dict[bytes, Halted] = {}  # by key: why its last record cannot be read
        self._is_lenient = is_lenient
        self.went_on = False  # whether the last reading continued from the store's rows
        self._settings = settings
        self._state = state
        self._store = store
        self._row_codec = row_codec
        self._wanted = wanted
        self._progress = progress
        self._topic_ids = topic_ids
        self._high_watermark = changelog_end
        self._first_position = state.position
        self._since_s = 0.0  # since when all deletions must be found, seconds since the epoch

    def load_rows(self) -> int:
        """Read from where the store stands to the changelog's end, and return the end."""
        self._reader = reader_of(self._settings)
        try:
            self._begin_reading()
            changelog_next = self._read_to_end()
            self._require_readable()
            position = self._state.position
            if fault := self._topic_ids.find_replaced(self._state.partition, position, self._settings.topics):
                raise fault
            require_known_rules(self._state.partition, self._state.position)
            require_roomy_topics(self._settings, self._state.partition, self._state.position)
            self._store.finish_loading()
        except KafkaException as error:
            raise Lost(f"changelog of partition {self._state.partition}: {error.args[0]}") from error
        finally:
            self._reader.close()
        return changelog_next

    def _require_readable(self, unreadable_max: int = 0) -> None:
        """Raise `Halted` if more records than this cannot be read, and no later one replaces them.

        Compaction leaves a damaged record behind the one that replaces it for a while.
        """
        if len(self.unreadable) > unreadable_max and not self._is_lenient:
            self._store.wipe()  # the next attempt must not continue behind these records
            raise next(iter(self.unreadable.values()))

    def _begin_reading(self) -> None:
        store, now_s = self._store, time.time()
        low, end = self._reader.get_watermark_offsets(self._place(), timeout=_TIMEOUT_S)
        known = _furthest_position(store)
        store.rows.forget_unsaved()  # an owner elsewhere may have changed them since
        # The end is the stable one. A store may have what follows it.
        last = max(end, self._high_watermark)
        is_of_this_log = known is not None and not self._is_of_other_log(known.position)
        if known is not None and is_of_this_log and known.position.batch_number and known.changelog_next > last:
            raise self._end_lost(known, last)
        self.went_on = is_of_this_log and is_usable(known, low, last)
        if known is not None and self.went_on:
            position, next_offset, self._since_s = known
            if next_offset > end:
                raise self._transaction_open(next_offset)
        else:
            store.wipe()
            position, next_offset, self._since_s = self._first_position, low, now_s
        self._state.load_position(position)
        self._state.rows = store.rows
        self._reader.assign([self._place(next_offset if self.went_on else OFFSET_BEGINNING)])
        self._progress.next_offset, self._progress.end_offset = next_offset, end

    def _is_of_other_log(self, stored: Position) -> bool:
        """Return whether a store was filled from a changelog that was made again since."""
        return is_other_topic(stored.changelog_topic_id, self._topic_ids.changelog)

    def _read_to_end(self) -> int:
        heard_s = asked_s = time.monotonic()
        while self._wanted():
            # Wait for the first message only: `consume` would wait until it has as many as it may
            # take.
            if (first := self._reader.poll(0.2)) is not None:
                messages = (first, *self._reader.consume(_BATCH_RECORDS, 0))
                end = self._load_messages(messages)
                if end is not None and end < self._high_watermark:
                    raise self._transaction_open(end)
                if end is not None:
                    return end
                if any(message.error() is None for message in messages):
                    heard_s = asked_s = time.monotonic()
            if time.monotonic() - heard_s > _SILENCE_MAX_S:
                raise Lost(f"changelog of partition {self._state.partition}: silent for {_SILENCE_MAX_S:g} s")
            if time.monotonic() - asked_s > RENEW_S:
                self._renew_reader(time.monotonic() - heard_s)
                asked_s = time.monotonic()
        raise Lost("no longer wanted")

    def _end_lost(self, known: SavedPosition, end: int) -> Halted:
        found = (
            f"ends at {end}, although this worker's local store holds it up to offset {known.changelog_next} (batch "
            f"{known.position.batch_number}); if all topics were made again, remove that store"
        )
        return position_lost(self._state.partition, self._settings.topics.changelog, found)

    def _transaction_open(self, next_offset: int) -> Halted:
        return Halted(
            "transaction_open",
            f"partition {self._state.partition}: its changelog {self._settings.topics.changelog} ends at "
            f"{self._high_watermark}, but an open transaction hides what follows offset {next_offset}. Rows and a "
            "newer position may be there, so nothing is folded. kafka-transactions.sh finds its producer "
            f"(describe-producers; describe for {transactional_id(self._settings, self._state.partition)}). Another "
            "producer's: abort it, and let no other program write to this topic. This partition's own: its commit was "
            "acknowledged, and the broker lost it; bring the replica back that has it, for an abort loses that batch",
        )

    def _renew_reader(self, silent_s: float) -> None:
        """Replace the reader if a new client hears the broker; continue where it stands.

        Something is always left to be read, the changelog's end at least.
        """
        fresh = reader_of(self._settings)
        try:
            _, end = fresh.get_watermark_offsets(self._place(), timeout=_ASK_S)
        except KafkaException:
            fresh.close()  # the reader is not to blame
            return
        stalled, self._reader = self._reader, fresh
        close_in_background(stalled)
        self._progress.end_offset = end
        self._reader.assign([self._place(self._progress.next_offset)])
        _log.warning(
            "the reader of a changelog stood still at offset %(next_offset)d for %(silent_s).0f s, the log ends at "
            "%(log_end)d; a new client continues",
            next_offset=self._progress.next_offset,
            silent_s=silent_s,
            log_end=end,
            partition=self._state.partition,
        )

    def _place(self, offset: int = OFFSET_BEGINNING) -> TopicPartition:
        return TopicPartition(self._settings.topics.changelog, self._state.partition, offset)

    def _load_messages(self, messages: Sequence[Message]) -> int | None:
        """Load the consumer's messages. Return the changelog's end if it is reached."""
        end: int | None = None
        if any(map(Message.error, messages)):
            for message in messages:
                if (fault := message.error()) is not None and fault.code() == KafkaError._PARTITION_EOF:
                    end = message.offset() or 0
                elif fault is not None:
                    _check_fault(self._state.partition, message, fault)
            messages = [message for message in messages if message.error() is None]
        if messages:
            rows = self._read_rows(messages)
            self._progress.next_offset = (messages[-1].offset() or 0) + 1
            mark = SavedPosition(self._state.position, self._progress.next_offset, self._since_s)
            self._store.load_rows(rows, mark)
        return end

    def _read_rows(self, messages: Sequence[Message]) -> dict[bytes, bytes | None]:
        """Return the values that the store is to keep, by key; take the position records.

        Opening a partition takes one turn of a loop per row, so each call per row counts: a call
        by `map` takes half the time.
        """
        rows: dict[bytes, bytes | None] = {}
        records = ChangelogRecords(
            cast(list[bytes | None], list(map(Message.key, messages))),
            cast(list[bytes | None], list(map(Message.value, messages))),
            read_each_headers(messages),
        )
        place = 0
        while (place := self._row_codec.repack_usual(records, place, rows)) < len(messages):
            key, value = records.keys[place], records.values[place]
            assert value is not None  # a deletion is usual
            try:
                if key == POSITION_KEY:
                    self._state.load_position(_position(value))
                    self.unreadable.pop(key, None)
                else:
                    rows[key or b""] = self._row_codec.repack(value, _find_due(records.headers[place] or ()))
            except DecodeError as error:
                self.unreadable[key or b""] = self._unreadable(messages[place], error)
                rows.pop(key or b"", None)
            place += 1
        if self.unreadable:
            self.unreadable = {key: fault for key, fault in self.unreadable.items() if key not in rows}
            rows |= dict.fromkeys(self.unreadable.keys() - {POSITION_KEY})
            self._require_readable(_UNREADABLE_MAX)
        return rows

    def _unreadable(self, message: Message, error: DecodeError) -> Halted:
        where = f"partition {self._state.partition}, offset {message.offset()}, key {message.key()!r}"
        return Halted(
            "changelog_unreadable",
            f"{where}: a record of {self._settings.topics.changelog} cannot be decoded ({error.detail}). If a newer "
            "release wrote it, upgrade this worker. If another program wrote it, or it is damaged: sessionary "
            f"partition rebuild {self._state.partition}",
        )


def _check_fault(partition: int, message: Message, fault: KafkaError) -> None:
    """Raise unless the fault passes by itself."""
    if is_unreadable_batch(message):
        where = f"partition {partition}: {describe_unreadable_batch(message)}"
        raise Halted("changelog_unreadable", f"{where}. Bring a replica back that has it intact")
    if fault.code() not in _PASSING:
        raise KafkaException(fault)


def seal_with(
    store: Store,
    leader_epoch: int | None,
    topic_ids: TopicIds = NO_IDS,
    log_truncated: str | None = None,
    log_lost_from: int | None = None,
) -> Seal:
    """Return a function that completes a position record, for finding losses.

    It adds the rows' sum, the ids of the topics, `leader_epoch` (that of the last record below the
    position), `log_truncated` and `log_lost_from`.
    """

    def seal(position: Position, rows: Mapping[bytes, bytes | None]) -> Position:
        count, checksum = store.sum_with(rows)
        return topic_ids.complete(position)._replace(
            leader_epoch=leader_epoch,
            row_count=count,
            row_checksum=checksum,
            log_truncated=log_truncated,
            log_lost_from=log_lost_from,
        )

    return seal


def _position(value: bytes) -> Position:
    record = Decoder().decode_record(value)
    if not isinstance(record, Position):
        raise DecodeError("unknown_schema", f"a {type(record).__name__} is no position")
    return record


def _find_due(headers: Headers) -> bytes | None:
    return next((value for name, value in headers if name == DUE_HEADER and isinstance(value, bytes)), None)
