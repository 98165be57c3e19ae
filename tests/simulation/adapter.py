"""The one place where the simulation touches the fold: how it is opened, what is stored of it, what is read of it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import Gravestone, Position, SessionState
from sessionary.stream_processors.core.partition import Batch, FoldSettings, LogRecord, Outcome, PartitionFold

POSITION_KEY = b"\x00position"
DECODER = Decoder()
Stored = tuple[bytes, bytes | None]


class Folded(NamedTuple):
    """What a whole log comes to."""

    outcomes: list[Outcome]
    rows: dict[bytes, bytes]
    position: Position


def opened(partition: int, settings: FoldSettings, changelog: Iterable[Stored]) -> PartitionFold:
    """A fold as a processor has it after recovery from these changelog records."""
    fold = PartitionFold(partition, settings, DECODER)
    for key, value in changelog:
        record = None if value is None else DECODER.decode_record(value)
        if isinstance(record, Position):
            fold.load_position(record)
        elif record is None or isinstance(record, SessionState | Gravestone):
            fold.load(key, record)
    fold.loaded()
    return fold


def changelog_of(outcome: Outcome) -> list[Stored]:
    """What a transaction writes to the changelog; the position stands last."""
    rows: list[Stored] = [(key, None if row is None else encode_record(row)) for key, row in outcome.rows.items()]
    return [*rows, (POSITION_KEY, encode_record(outcome.position))]


def look(fold: PartitionFold, key: bytes) -> SessionState | Gravestone | None:
    """The committed row of a session."""
    return fold.rows.get(key)


def table(fold: PartitionFold) -> dict[bytes, bytes]:
    """All committed rows as the changelog has them."""
    return {key: encode_record(row) for key, row in fold.rows.items()}


def compared_rows(fold: PartitionFold, whole: Folded) -> list[str]:
    """What differs between a fold that went through trouble and one that did not."""
    ours = table(fold)
    found = [
        f"row {key!r}: {fold.rows.get(key)} instead of {whole.rows.get(key) and DECODER.decode_record(whole.rows[key])}"
        for key in sorted(ours.keys() | whole.rows.keys())
        if ours.get(key) != whole.rows.get(key)
    ]
    position = fold.position._replace(batch_number=whole.position.batch_number)
    return found if position == whole.position else [*found, f"{position} instead of {whole.position}"]


def folded(partition: int, settings: FoldSettings, log: Sequence[LogRecord], cut: int) -> Folded:
    """Fold a log without any trouble, in batches of `cut` records; timers do not cut."""
    fold = opened(partition, settings._replace(records_max=cut, bytes_max=1 << 40, timers_max=1 << 40), ())
    outcomes: list[Outcome] = []
    for start in range(0, len(log), cut):
        batch = fold.begin()
        for record in log[start : start + cut]:
            assert batch.apply(record)
        outcomes.append(batch.finish())
        fold.merge(batch)
    return Folded(outcomes, table(fold), fold.position)


__all__ = [
    "DECODER",
    "POSITION_KEY",
    "Batch",
    "FoldSettings",
    "Folded",
    "LogRecord",
    "Outcome",
    "PartitionFold",
    "Stored",
    "changelog_of",
    "compared_rows",
    "folded",
    "look",
    "opened",
    "table",
]
