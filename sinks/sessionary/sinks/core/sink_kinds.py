"""The sinks as data: the topic, the table and the row builder of each; pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

from sessionary.schemas.codec import record_headers
from sessionary.schemas.records import BatchAcknowledged
from sessionary.schemas.topics import SINK_TOPICS, SinkTopic
from sessionary.sinks.core.rows.event_columns import find_encoder
from sessionary.sinks.core.rows.history import HISTORY_COLUMNS, history_row
from sessionary.sinks.core.rows.outputs import (
    ACKNOWLEDGEMENT_COLUMNS,
    AUDIT_COLUMNS,
    BATCH_COLUMNS,
    DEAD_LETTER_COLUMNS,
    REJECTED_COLUMNS,
    acknowledgement_row,
    audit_row,
    batch_row,
    rejected_row,
)
from sessionary.sinks.core.rows.shared import EncoderFinder, RowBuilder

SinkKind = Literal["audit", "history", "rejected", "batches"]


class TableSpec(NamedTuple):
    """A table and the columns that a sink writes."""

    name: str
    columns: tuple[str, ...]


class SideTable(NamedTuple):
    """A second table of a sink, for records of one class on its topic.

    `headers`: the first ten bytes of such a record's value.
    """

    headers: frozenset[bytes]
    table: TableSpec
    build_row: RowBuilder


class SinkDefinition(NamedTuple):
    """One sink. `topic` is a field of `TopicNames`.

    `find_encoder`: finds an encoder from bytes to columns, equal to `build_row`; None without.
    """

    kind: SinkKind
    topic: SinkTopic
    table: TableSpec
    build_row: RowBuilder
    side: SideTable | None = None
    find_encoder: EncoderFinder | None = None


DEAD_LETTERS: Final = TableSpec("sink_dead_letters", DEAD_LETTER_COLUMNS)

_ACKNOWLEDGEMENTS: Final = SideTable(
    record_headers(BatchAcknowledged),
    TableSpec("batch_acknowledgements", ACKNOWLEDGEMENT_COLUMNS),
    acknowledgement_row,
)
_SINKS: Final = (
    SinkDefinition("audit", SINK_TOPICS["audit"], TableSpec("audit", AUDIT_COLUMNS), audit_row),
    SinkDefinition(
        "history",
        SINK_TOPICS["history"],
        TableSpec("history", HISTORY_COLUMNS),
        history_row,
        find_encoder=find_encoder,
    ),
    SinkDefinition("rejected", SINK_TOPICS["rejected"], TableSpec("rejected", REJECTED_COLUMNS), rejected_row),
    SinkDefinition(
        "batches", SINK_TOPICS["batches"], TableSpec("batches", BATCH_COLUMNS), batch_row, _ACKNOWLEDGEMENTS
    ),
)
SINKS: Final[Mapping[SinkKind, SinkDefinition]] = MappingProxyType({sink.kind: sink for sink in _SINKS})
assert tuple(SINKS) == get_args(SinkKind) == tuple(SINK_TOPICS)


def tables_of(definition: SinkDefinition) -> list[tuple[str, str]]:
    """Return the tables in which a record of a sink may be, each with a condition of SQL."""
    tables = [(definition.table.name, ""), (DEAD_LETTERS.name, f" AND sink = '{definition.kind}'")]
    return tables if definition.side is None else [*tables, (definition.side.table.name, "")]
