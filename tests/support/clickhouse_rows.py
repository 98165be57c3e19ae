"""Inserts records into ClickHouse as the sinks do, without Kafka."""

from collections.abc import Sequence

from sessionary.schemas.codec import Decoder
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.settings import SinkSettings


def insert_records(
    clickhouse: ClickHouseSettings,
    kind: SinkKind,
    values: Sequence[bytes],
    at_us: int,
    token: str = "t",
    first_offset: int = 0,
) -> None:
    """Insert one block of a sink: encoded records of partition 0, at offsets from the first on.

    All have the log time `at_us`, µs since the epoch. A block whose token was seen is left out.
    """
    insert_block(clickhouse, kind, [(at_us, offset, value) for offset, value in enumerate(values, first_offset)], token)


def insert_block(
    clickhouse: ClickHouseSettings,
    kind: SinkKind,
    records: Sequence[tuple[int, int, bytes]],
    token: str,
    *,
    in_side: bool = False,
) -> None:
    """Insert one block of records of partition 0, each as (log time in µs, offset, encoded).

    They go into the sink's own table, or into its side table.
    """
    raws = [RawRecord("t", 0, offset, at_us // 1_000, b"k", value) for at_us, offset, value in records]
    insert_raws(clickhouse, kind, raws, token, in_side=in_side)


def insert_raws(
    clickhouse: ClickHouseSettings, kind: SinkKind, raws: Sequence[RawRecord], token: str, *, in_side: bool = False
) -> None:
    """Insert one block of records, as Kafka delivered them."""
    sink = SINKS[kind]
    target = sink.side if in_side else sink
    assert target is not None
    inserter = TableInserter(SinkSettings.model_validate(clickhouse.model_dump()), target.table)
    inserter.open()
    block = inserter.new_block()
    assert not block.add_rows([target.build_row(raw, Decoder()) for raw in raws])
    inserter.insert_block(block, token, first_try=True)
    inserter.close()
