"""The one place where the simulation touches the fold: how it is opened, what is stored of it, what
is read of it.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sessionary.schemas.codec import Decoder, encode_position
from sessionary.schemas.ids import parse_key
from sessionary.schemas.records import AuditRecord, Position, Tombstone, TombstoneChunk
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.judge import Judge
from sessionary.stream_processors.core.model import (
    POSITION_KEY,
    BatchResult,
    ClockSetting,
    Counts,
    LogRecord,
    SkippedOffsets,
)
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.tombstones import ChunkSizes
from sessionary.stream_processors.core.uncommitted_batch import UncommittedBatch
from sessionary.stream_processors.rules_change import RulesRequest, due_request
from sessionary.stream_processors.runtime.transaction import EndWatch
from sessionary.stream_processors.store.cached_rows import CachedRows
from sessionary.stream_processors.store.packed_rows import FamilyCodec, StoredLookup
from tests.auditor.decoding import SKIPS
from tests.integration.refold import announce_again, set_clock_again, skip_again
from tests.support.judges import JUDGE
from tests.support.row_differences import row_differences

DECODER = Decoder()
Stored = tuple[bytes, bytes | None]


class Folded(NamedTuple):
    """What a whole log comes to."""

    outcomes: list[BatchResult]
    rows: dict[bytes, bytes]
    position: Position


def opened(
    partition: int,
    settings: PartitionSettings,
    changelog: Iterable[Stored],
    judge: Judge = JUDGE,
) -> PartitionState:
    """A state as a processor has it after recovery from these changelog records."""
    state, rows = PartitionState(partition, settings, DECODER, judge), FamilyCodec(judge.families)
    shelf: dict[bytes, bytes] = {}
    for key, value in changelog:
        if key == POSITION_KEY:
            position = DECODER.decode_record(value)
            assert isinstance(position, Position)
            state.load_position(position)
        elif value is None:
            shelf.pop(key, None)
        else:
            shelf[key] = rows.repack(value, None)
    for key, row in CachedRows(shelf, rows).items():
        state.load(key, row)
    state.finish_loading()
    return state


def announcement(state: PartitionState, request: RulesRequest | None) -> UncommittedBatch | None:
    """A batch that announces the rules that are asked for; None if it is not the time for it."""
    if (due := due_request(request, state.position)) is None:
        return None
    batch = state.begin()
    batch.announce_rules(*due)
    return batch


def clock_repair(state: PartitionState, setting: ClockSetting | None) -> UncommittedBatch | None:
    """A batch that sets the clock as an operator wants; None if it is not the time for it."""
    if setting is None or setting.until_offset < state.position.next_offset:
        return None  # the record by which the broker reported its time is folded already
    position = state.position
    if not state.may_repair_clock or len(position.clock_repairs) == 8:
        return None  # of nine repairs two become one: then rows may be due later than by the oracle
    batch = state.begin()
    batch.set_clock(setting)
    return batch


def skip(state: PartitionState, records: Sequence[LogRecord], clock_ms: int) -> UncommittedBatch | None:
    """A batch that leaves the next records unfolded, or accepts that the log has a gap there.

    `records` are the next ones; `clock_ms` is not below the position's. None if it is not the time
    for it: timers of the next record are written in parts.
    """
    if not records or not state.may_repair_clock:
        return None
    batch, next_offset = state.begin(), state.position.next_offset
    if records[0].offset > next_offset:
        gone = SkippedOffsets("log_gap_accepted", records[0].offset, state.position.clock_ms, "it is gone", "on-call")
        batch.skip_offsets(gone)
    else:
        after = records[-1].offset + 1
        batch.skip_offsets(SkippedOffsets("records_skipped", after, clock_ms, "poison", "on-call", records))
    return batch


def changelog_of(outcome: BatchResult, judge: Judge, stored: StoredLookup) -> list[Stored]:
    """What a transaction writes to the changelog; the position is last."""
    packed = FamilyCodec(judge.families).pack_changes(outcome.rows, NEWEST_RULES.version, stored)
    rows = [(key, row and row.value) for key, row in packed.items()]
    return [*rows, (POSITION_KEY, encode_position(outcome.position))]


def log_end_answer(watch: EndWatch, answer: str) -> None:
    """Log the answer to a request to end a transaction as the driver does."""
    watch.log(logging.DEBUG, "%s [%s] %s", "ENDTXN", "simulated", f"EndTxn returned {answer} in state …")


def look(state: PartitionState, key: bytes) -> Any:
    """The committed row under a key; of a packed tombstone only that it is one."""
    if state.is_packed(key):
        return Tombstone(*parse_key(key), (), "packed", 0, 0, 0)
    return state.rows.get(key)


def row_classes(state: PartitionState) -> set[str]:
    """The names of the classes of all committed rows."""
    return {type(row).__name__ for row in state.rows.values()}


def chunks_in(outcome: BatchResult) -> int:
    """How many chunks of tombstones a transaction writes."""
    return sum(isinstance(row, TombstoneChunk) for row in outcome.rows.values())


def table(state: PartitionState) -> dict[bytes, bytes]:
    """All committed rows as the changelog has them."""
    codec = _codec_of(state)
    return {key: codec.pack(row, NEWEST_RULES.version).value for key, row in state.rows.items()}


def _codec_of(state: PartitionState) -> FamilyCodec:
    return FamilyCodec(state.judge.families)


def compared_rows(fold: PartitionState, whole: Folded) -> list[str]:
    """What differs between a fold that went through trouble and one that did not."""
    codec = _codec_of(fold)
    theirs = {key: codec.unpack(codec.repack(value, None)) for key, value in whole.rows.items()}
    found = [*row_differences(codec, fold.rows, theirs)]
    position = fold.position._replace(batch_number=whole.position.batch_number)
    return found if position == whole.position else [*found, f"{position} instead of {whole.position}"]


def folded(
    partition: int,
    settings: PartitionSettings,
    log: Sequence[LogRecord],
    cut: int,
    judge: Judge = JUDGE,
    decisions: Sequence[AuditRecord] = (),
) -> Folded:
    """Fold a log without any trouble, in batches of `cut` records; timers do not cut.

    `decisions` of an operator, in order, are taken where the audit trail has them. Raises
    `ValueError` if the fold comes to no batch that ends there: a line is missing or doubled.
    """
    unbounded = settings._replace(records_max=cut, bytes_max=1 << 40, timers_max=1 << 40, output_bytes_max=1 << 40)
    fold = opened(partition, unbounded, (), judge)
    outcomes: list[BatchResult] = []
    waiting, decided = list(reversed(log)), list(reversed(decisions))
    while waiting or decided:
        batch = fold.begin()
        if decided and decided[-1].source_offset == fold.position.next_offset:
            decision = decided.pop()
            if decision.event_type in SKIPS:
                skip_again(batch, decision, waiting)
            elif decision.event_type == "clock_repaired":
                set_clock_again(batch, decision)
            else:
                announce_again(batch, decision)
        else:
            stop = decided[-1].source_offset if decided else 1 << 62
            while waiting and waiting[-1].offset < stop and batch.apply(waiting[-1]):
                waiting.pop()
            if not batch.records:
                raise ValueError(f"from {fold.position.next_offset} nothing leads to the decision at {stop}")
        outcomes.append(batch.finish())
        fold.merge(batch)
    return Folded(outcomes, table(fold), fold.position)


__all__ = [
    "DECODER",
    "JUDGE",
    "POSITION_KEY",
    "BatchResult",
    "ChunkSizes",
    "ClockSetting",
    "Counts",
    "EndWatch",
    "Folded",
    "Judge",
    "LogRecord",
    "PartitionSettings",
    "PartitionState",
    "RulesRequest",
    "Stored",
    "UncommittedBatch",
    "announcement",
    "changelog_of",
    "chunks_in",
    "clock_repair",
    "compared_rows",
    "folded",
    "log_end_answer",
    "look",
    "opened",
    "row_classes",
    "skip",
    "table",
]
