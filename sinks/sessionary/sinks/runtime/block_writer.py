"""One block from records to stored rows: decode, encode, dead letters, insert.

Every step may be repeated.
"""

import logging
import time
from collections.abc import Sequence

from confluent_kafka import KafkaException, Producer

from sessionary.schemas.codec import Decoder
from sessionary.schemas.codec.record_sizes import EncodedRecord, encode_to_fit
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.kafka.clients import ORDERED, discard_producer, flush_producer
from sessionary.schemas.rules import NEWEST_RULES, REJECTED_BYTES_MAX
from sessionary.schemas.telemetry.log_fields import record_fields
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.clickhouse.native import PORTION, NativeBlock
from sessionary.sinks.core.intent import Piece, RecordBlock
from sessionary.sinks.core.rows.outputs import dead_letter_record, dead_letter_row
from sessionary.sinks.core.rows.shared import RawRecord, RecordEncoder, RowBuilder, TableRow
from sessionary.sinks.core.sink_kinds import DEAD_LETTERS, SinkDefinition, tables_of
from sessionary.sinks.errors import BadRow, OperatorError, Transient
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.settings import SinkSettings

# Produces a sink's dead letters: records that it cannot store, to the topic `sink-rejected`.
#
# Letters are acknowledged before the block of their records counts as written, so that no letter is
# lost. After a crash in between they are produced again; sink and source position identify the
# copies.


_FLUSH_TIMEOUT_S = 10.0
_kafka_log = logging.getLogger(__name__)


class DeadLetterProducer:
    """Produces the dead letters of one sink. Connects at the first one; not thread-safe."""

    def __init__(self, settings: SinkSettings, sink: str) -> None:
        self._settings = settings
        self._sink = sink
        self._producer: Producer | None = None

    def send_letters(self, letters: Sequence[tuple[RawRecord, str]]) -> None:
        """Produce letters as (record, why) and wait for their acknowledgement.

        Blocks for up to 10 s. Raises `Transient`.
        """
        failures: list[str] = []
        producer = self._open_producer()
        for raw, detail in letters:
            key, value = encode_letter(raw, f"sink {self._sink}: {detail}")
            try:
                producer.produce(
                    self._settings.topics.sink_rejected,
                    value,
                    key,
                    partition=raw.partition,
                    on_delivery=lambda error, _message: failures.append(str(error)) if error is not None else None,
                )
            except (KafkaException, BufferError) as error:
                self._drop_producer(producer)
                raise Transient("dead_letters", str(error)) from error
        try:
            left = flush_producer(producer, _FLUSH_TIMEOUT_S)
        except KafkaException as error:  # a fatal one: this producer sends nothing more
            self._drop_producer(producer)
            raise Transient("dead_letters", str(error)) from error
        if left or failures:
            why = failures[0] if failures else f"the broker did not acknowledge within {_FLUSH_TIMEOUT_S:g} s"
            self._drop_producer(producer)
            raise Transient("dead_letters", why)

    def _drop_producer(self, producer: Producer) -> None:
        """Send the next letters by a new producer: this one may have lost its brokers for ever."""
        self._producer = None
        discard_producer(producer)

    def _open_producer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    **self._settings.client_config(),
                    **ORDERED,
                    "message.max.bytes": REJECTED_BYTES_MAX,
                },
                logger=_kafka_log,
            )
        return self._producer


def encode_letter(raw: RawRecord, detail: str) -> EncodedRecord:
    """Encode the dead letter of a record; one that is too large is cut (see `encode_to_fit`)."""
    return encode_to_fit(raw.key, dead_letter_record(raw, detail), REJECTED_BYTES_MAX, NEWEST_RULES.version)


# How many tokens of a table a server remembers, and a replicated table for how long (see the
# tables' settings). A replay of an older block may leave its rows twice until they are merged.
_WINDOW_BLOCKS = 10_000
_WINDOW_MS = 7 * 86_400_000
# A server reports a block as written also if it knew the token, and kept nothing. A server that was
# killed during an insert may know the token of a part that it has lost. So a sink counts the rows
# of each block whose insert is repeated, and of one block in so many seconds.
_LOOK_EVERY_S = 30.0
_log = role_logger(__name__)


class BlockWriter:
    """Writes the blocks of one sink. Methods block; not thread-safe."""

    def __init__(
        self,
        definition: SinkDefinition,
        settings: SinkSettings,
        metrics: SinkMetrics,
        decoder: Decoder,
        *,
        group: str | None = None,
    ) -> None:
        """`group`: the first part of the blocks' tokens, by default the sink's consumer group."""
        self._definition = definition
        self._topic = getattr(settings.topics, definition.topic)
        self._group = group or settings.group_id(definition.kind)
        self._metrics = metrics
        self._decoder = decoder
        others = () if definition.side is None else (definition.side.table,)
        self._inserter = TableInserter(settings, definition.table, *others)
        self._dead_letters = DeadLetterProducer(settings, definition.kind)
        # By partition, the token of the block whose insert was tried, and of the block whose
        # dead letters were acknowledged.
        self._tried_tokens: dict[int, str] = {}
        self._lettered_tokens: dict[int, str] = {}
        self._look_at_s = 0.0

    def write_block(self, partition: int, block: RecordBlock) -> None:
        """Write a block whose intent is committed.

        Raises `Transient`, `OperatorError`; then call it again with the same block.
        """
        token = block.insert_token(self._group, self._topic, partition)
        self._inserter.open()
        letters: list[tuple[RawRecord, str]] = []
        records, aside = self._split_records(block.records)
        aside_rows = self._write_aside(token, block.topic_id, aside, letters) if aside else 0
        native = self._encode_records(block, records, letters)
        if letters:
            self._write_dead_letters(partition, token, block.topic_id, letters)
        first_try = block.replay_of is None and self._tried_tokens.get(partition) != token
        self._tried_tokens[partition] = token
        began = time.perf_counter()
        self._inserter.insert_block(native, token, first_try=first_try)
        self._metrics.insert_seconds.observe(time.perf_counter() - began)
        if native.rows and (not first_try or time.monotonic() >= self._look_at_s):
            self._keep_block(partition, block, records, native.rows, token)
            self._look_at_s = time.monotonic() + _LOOK_EVERY_S
        self._metrics.rows.inc(native.rows + aside_rows)
        self._metrics.blocks.inc()
        if block.replay_of is not None:
            self._report_replay(partition, block)

    def find_skip(self, partition: int, offset: int) -> int | None:
        """Return the last offset of the events that an operator had skipped with `offset`, or None.

        The skip is in the audit trail, once its sink has stored it. Raises `Transient`,
        `OperatorError`.
        """
        return self._inserter.find_skip(partition, offset) if self._definition.topic == "events" else None

    def _keep_block(
        self, partition: int, block: RecordBlock, records: Sequence[RawRecord], rows: int, token: str
    ) -> None:
        """Check whether ClickHouse kept a block's rows; insert missing ones under another token.

        Raises `OperatorError` if ClickHouse does not keep these either.
        """
        ranges = block.pieces or [Piece(partition, block.first, block.last)]
        kept = self._inserter.count_rows(ranges, rows)
        if kept >= rows:
            return
        _log.error(
            "partition %(partition)d: ClickHouse did not keep %(lost)d of a block's %(rows)d rows; they are inserted "
            "again (%(insert_token)s)",
            lost=rows - kept,
            rows=rows,
            insert_token=token,
            partition=partition,
            offset=block.first,
        )
        self._metrics.count_retry("block_not_kept")
        stored = self._inserter.read_places(ranges)
        lost = self._encode_records(block, [raw for raw in records if (raw.partition, raw.offset) not in stored], [])
        self._inserter.insert_block(lost, f"{token}:again:{kept}", first_try=False)
        kept = self._inserter.count_rows(ranges, rows)
        if kept < rows:
            raise OperatorError("block_not_kept", f"{rows} rows sent twice, {kept} found ({token})")

    def check_writable(self) -> None:
        """Raise as `write_block` does unless ClickHouse takes rows for the sink's tables."""
        self._inserter.open()

    def read_topic_ids(self) -> set[str]:
        """Return the ids of the sink's topic in its table. Raises as `write_block` does."""
        return self._inserter.read_topic_ids(self._topic)

    def read_next_offsets(self, topic_id: str) -> dict[int, int]:
        """Return, by partition, the offset after the last stored record of a topic of this id.

        Dead letters count. Raises as `write_block` does.
        """
        return self._inserter.read_next_offsets(self._topic, topic_id, tables_of(self._definition))

    def close(self) -> None:
        """Close the connection to ClickHouse."""
        self._inserter.close()

    def _encode_records(
        self, block: RecordBlock, records: Sequence[RawRecord], letters: list[tuple[RawRecord, str]]
    ) -> NativeBlock:
        """Return rows of records of a block, in their order; append bad records to `letters`."""
        native = self._inserter.new_block(topic_id=block.topic_id)
        build, find = self._definition.build_row, self._definition.find_encoder
        encoder = None if find is None else find(native.given_columns)
        for first in range(0, len(records), PORTION):
            self._add_portion(native, encoder, build, list(records[first : first + PORTION]), letters)
        return native

    def _split_records(self, records: Sequence[RawRecord]) -> tuple[Sequence[RawRecord], Sequence[RawRecord]]:
        """Return the records for the sink's table, and those for its side table."""
        side = self._definition.side
        if side is None:
            return records, ()
        split: tuple[list[RawRecord], list[RawRecord]] = ([], [])
        for raw in records:
            split[raw.value is not None and raw.value[:10] in side.headers].append(raw)
        return split

    def _write_aside(
        self, token: str, topic_id: str | None, records: Sequence[RawRecord], letters: list[tuple[RawRecord, str]]
    ) -> int:
        """Insert records into the side table; return the number of rows."""
        side = self._definition.side
        assert side is not None
        block = self._inserter.new_block(side.table.name, topic_id=topic_id)
        self._add_rows(block, side.build_row, records, letters)
        self._inserter.insert_block(block, f"{token}:aside", first_try=False, table=side.table.name)
        return block.rows

    def _add_portion(
        self,
        block: NativeBlock,
        encoder: RecordEncoder | None,
        build: RowBuilder,
        records: list[RawRecord],
        letters: list[tuple[RawRecord, str]],
    ) -> None:
        """Add the records' rows in their order, by the encoder if there is one.

        Records that it gives up are built and encoded as rows, several at a time if they are
        consecutive.
        """
        if encoder is None:
            self._add_rows(block, build, records, letters)
            return
        place, left = 0, list[RawRecord]()
        while place < len(records):
            taken, pieces = encoder.encode(records, place, len(records))
            if not taken:
                left.append(records[place])
                place += 1
                continue
            self._add_rows(block, build, left, letters)
            left = []
            block.add_pieces(taken, pieces)
            place += taken
        self._add_rows(block, build, left, letters)

    def _add_rows(
        self,
        block: NativeBlock,
        build: RowBuilder,
        records: Sequence[RawRecord],
        letters: list[tuple[RawRecord, str]],
    ) -> None:
        """Add the records' rows to `block`; append bad records to `letters`."""
        rows: list[TableRow] = []
        stored: list[RawRecord] = []
        decoder = self._decoder
        for raw in records:
            try:
                row = build(raw, decoder)
            except BadRow as error:
                letters.append((raw, error.detail))
            except Unavailable as error:
                # The registry is unreachable: that says nothing about the record's bytes.
                raise Transient("registry", str(error)) from error
            else:
                rows.append(row)
                stored.append(raw)
        letters += [(stored[row], detail) for row, detail in block.add_rows(rows)]

    def _write_dead_letters(
        self, partition: int, token: str, topic_id: str | None, letters: Sequence[tuple[RawRecord, str]]
    ) -> None:
        kind = self._definition.kind
        if self._lettered_tokens.get(partition) != token:
            self._dead_letters.send_letters(letters)
            self._lettered_tokens[partition] = token
            self._metrics.dead_letters.inc(len(letters))
            for raw, detail in letters:
                _log.error(
                    "a record becomes a dead letter: %(topic)s %(partition)d:%(offset)d: %(detail)s",
                    topic=raw.topic,
                    detail=detail,
                    error_class=BadRow.__name__,
                    **record_fields(raw.partition, raw.offset, raw.key),
                )
        block = self._inserter.new_block(DEAD_LETTERS.name, topic_id=topic_id)
        block.add_rows([dead_letter_row(kind, raw, detail) for raw, detail in letters])
        self._inserter.insert_block(block, f"{token}:dead", first_try=False, table=DEAD_LETTERS.name)

    def _report_replay(self, partition: int, block: RecordBlock) -> None:
        replay = block.replay_of
        assert replay is not None
        age_ms = max(0, time.time_ns() // 1_000_000 - replay.at_ms)
        self._metrics.replays.inc()
        self._metrics.replay_age.set(age_ms / 1_000)
        _log.info(
            "partition %(partition)d: offsets %(offset)d to %(last_offset)d were replayed",
            last_offset=block.last,
            partition=partition,
            offset=block.first,
        )
        blocks = self._inserter.count_blocks(replay.at_ms)
        self._metrics.window_used.set(blocks / _WINDOW_BLOCKS)
        if age_ms > _WINDOW_MS or blocks >= _WINDOW_BLOCKS:
            _log.error(
                "partition %(partition)d: the replayed block is older than ClickHouse's deduplication window "
                "(%(blocks)d blocks since); rows may be stored twice until they are merged",
                blocks=blocks,
                partition=partition,
                offset=block.first,
            )
        if len(block.records) != replay.records:
            _log.error(
                "partition %(partition)d: the replayed block declared %(declared)d records, the log has %(found)d",
                declared=replay.records,
                found=len(block.records),
                partition=partition,
                offset=block.first,
            )
