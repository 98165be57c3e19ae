"""One batch from records to rows in ClickHouse: decode, encode, dead letters, insert. Every step may be repeated."""

import logging
import time
from collections.abc import Sequence

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import Unavailable
from sessionary.sinks.clickhouse.inserter import Writer
from sessionary.sinks.clickhouse.native import PORTION
from sessionary.sinks.core.intent import Batch
from sessionary.sinks.core.rows.history import RawRecord, Row, dead_letter_row
from sessionary.sinks.core.sink_kinds import DEAD_LETTERS, SinkDefinition
from sessionary.sinks.errors import BadRow, Transient
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.dead_letter_producer import DeadLetters
from sessionary.sinks.settings import SinkSettings

# How long a server remembers tokens (see the tables' settings); a replay of an older batch may double it for a while.
_WINDOW_MS = 7 * 86_400_000
_log = logging.getLogger(__name__)


class Flusher:
    """Writes batches of one sink. Blocks; not thread-safe."""

    def __init__(
        self, definition: SinkDefinition, settings: SinkSettings, metrics: SinkMetrics, decoder: Decoder
    ) -> None:
        self._definition = definition
        self._topic = getattr(settings.topics, definition.topic)
        self._group = settings.group(definition.kind)
        self._metrics = metrics
        self._decoder = decoder
        self._writer = Writer(settings, definition.table)
        self._dead_letters = DeadLetters(settings, definition.kind)
        # By partition, the token of the batch under way: what was already tried, and whose letters are already out.
        self._tried: dict[int, str] = {}
        self._lettered: dict[int, str] = {}

    def write(self, partition: int, batch: Batch) -> None:
        """Write a batch whose intent is committed. Raises `Transient`, `OperatorError`; then call it again."""
        token = batch.token(self._group, self._topic, partition)
        self._writer.open()
        block = self._writer.block()
        letters: list[tuple[RawRecord, str]] = []
        for first in range(0, len(batch.records), PORTION):
            rows, sources = self._decoded(batch.records[first : first + PORTION], letters)
            letters += [(sources[row], detail) for row, detail in block.add(rows)]
        if letters:
            self._bury(partition, token, letters)
        first_try = batch.replay_of is None and self._tried.get(partition) != token
        self._tried[partition] = token
        began = time.perf_counter()
        self._writer.insert(block, token, first_try=first_try)
        self._metrics.insert_seconds.observe(time.perf_counter() - began)
        self._metrics.rows.inc(block.rows)
        self._metrics.batches.inc()
        if batch.replay_of is not None:
            self._report_replay(partition, batch)

    def close(self) -> None:
        """Let go of the connection to ClickHouse."""
        self._writer.close()

    def _decoded(
        self, records: Sequence[RawRecord], letters: list[tuple[RawRecord, str]]
    ) -> tuple[list[Row], list[RawRecord]]:
        """Return rows, and for each its record; what can become no row goes to `letters`."""
        rows: list[Row] = []
        sources: list[RawRecord] = []
        build, decoder = self._definition.row, self._decoder
        for raw in records:
            try:
                row = build(raw, decoder)
            except BadRow as error:
                letters.append((raw, error.detail))
            except Unavailable as error:
                # A registry that is away says nothing about the bytes.
                raise Transient("registry", str(error)) from error
            else:
                rows.append(row)
                sources.append(raw)
        return rows, sources

    def _bury(self, partition: int, token: str, letters: Sequence[tuple[RawRecord, str]]) -> None:
        kind = self._definition.kind
        if self._lettered.get(partition) != token:
            self._dead_letters.send(letters)
            self._lettered[partition] = token
            self._metrics.dead_letters.inc(len(letters))
            for raw, detail in letters:
                _log.error("dead letter: %s %d:%d: %s", raw.topic, raw.partition, raw.offset, detail)
        block = self._writer.block(DEAD_LETTERS.name)
        block.add([dead_letter_row(kind, raw, detail) for raw, detail in letters])
        self._writer.insert(block, f"{token}:dead", first_try=False, table=DEAD_LETTERS.name)

    def _report_replay(self, partition: int, batch: Batch) -> None:
        replay = batch.replay_of
        assert replay is not None
        age_ms = max(0, time.time_ns() // 1_000_000 - replay.at_ms)
        self._metrics.replays.inc()
        self._metrics.replay_age.set(age_ms / 1_000)
        _log.info("partition %d: replayed %d to %d", partition, batch.first, batch.last)
        if age_ms > _WINDOW_MS:
            _log.error("partition %d: the replay is older than the deduplication window", partition)
        if len(batch.records) != replay.records:
            _log.error("partition %d: %d records declared, %d found", partition, replay.records, len(batch.records))


__all__ = ["Flusher"]
