"""The sinks, as data: what each reads, and into which table, by which function."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from sessionary.sinks.core.rows.history import (
    AUDIT_COLUMNS,
    BATCH_COLUMNS,
    DEAD_LETTER_COLUMNS,
    HISTORY_COLUMNS,
    REJECTED_COLUMNS,
    RowBuilder,
    audit_row,
    batch_row,
    history_row,
    rejected_row,
)

SinkKind = Literal["audit", "history", "rejected", "batches"]


class TableSpec(NamedTuple):
    """A table and the columns that are written."""

    name: str
    columns: tuple[str, ...]


class SinkDefinition(NamedTuple):
    """One sink; `topic` is a field of `TopicNames`."""

    kind: SinkKind
    topic: Literal["audit", "events", "rejected", "batches"]
    table: TableSpec
    row: RowBuilder
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"


DEAD_LETTERS = TableSpec("sink_dead_letters", DEAD_LETTER_COLUMNS)

# Processors write in transactions: what they abort must not be seen. Clients and ticks write without.
_SINKS = (
    SinkDefinition("audit", "audit", TableSpec("audit", AUDIT_COLUMNS), audit_row),
    SinkDefinition("history", "events", TableSpec("history", HISTORY_COLUMNS), history_row, "read_uncommitted"),
    SinkDefinition("rejected", "rejected", TableSpec("rejected", REJECTED_COLUMNS), rejected_row),
    SinkDefinition("batches", "batches", TableSpec("batches", BATCH_COLUMNS), batch_row),
)
SINKS: Mapping[SinkKind, SinkDefinition] = MappingProxyType({sink.kind: sink for sink in _SINKS})
assert tuple(SINKS) == get_args(SinkKind)

__all__ = ["DEAD_LETTERS", "SINKS", "SinkDefinition", "SinkKind", "TableSpec"]
