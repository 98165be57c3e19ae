"""A migrated database whose rows are as old as a test wants."""

from collections.abc import Sequence
from typing import Any

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.codec import Decoder, Event, encode_event, encode_record
from sessionary.schemas.events import EVENT_TYPES, Payload, UsageRecorded
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import DataClass, Envelope
from sessionary.sinks.clickhouse import migrate
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.settings import SinkSettings
from tests.support.pipelines import run_sql
from tests.support.sink_records import DAY_US, session_id

TABLES = ("audit", "history", "rejected", "batches", "batch_acknowledgements")


def agent_event(payload: Payload, *classes: DataClass, session: int = 1, seq: int = 1, **fields: Any) -> bytes:
    """Return an event of the n-th session, encoded."""
    envelope = Envelope(
        event_id=f"event-{session}-{seq}",
        event_type=EVENT_TYPES[type(payload)],
        schema_version=1,
        tenant_id="acme",
        session_id=session_id(session),
        user_id="u1",
        agent_id="agent-1",
        agent_role=None,
        service_id="billing",
        actor=None,
        epoch=1,
        producer_id="p",
        producer_seq=seq,
        run_id=None,
        run_seq=None,
        step_id=None,
        causation_id=None,
        occurred_at=1,
        data_classes=classes,
    )
    return encode_event(Event(envelope._replace(**fields), payload))


def usage(*classes: DataClass, tokens: int = 100, **fields: Any) -> bytes:
    """Return a call of 10 and 2 millionths of a dollar."""
    return agent_event(UsageRecorded("m-large", tokens, 10, 10, 2, is_timeout_retry=False), *classes, **fields)


class AgedRows:
    """Inserts rows as sinks do, with a log time of some days ago, and lets retention pass."""

    def __init__(self, clickhouse: ClickHouseSettings, *, migrated: bool = True) -> None:
        if migrated:
            migrate.apply_migrations(clickhouse)
        self.clickhouse = clickhouse
        self.now_us = 1_000_000 * int(run_sql(clickhouse, "SELECT toUnixTimestamp(now())"))
        self._blocks = 0

    def at_us(self, age_days: float) -> int:
        """Return the log time of a row of that age."""
        return self.now_us - round(age_days * DAY_US)

    def insert_rows(self, kind: SinkKind, age_days: float, values: Sequence[bytes], first_offset: int = 0) -> None:
        """Insert encoded records of partition 0 as one block of a sink."""
        sink, at_ms = SINKS[kind], self.at_us(age_days) // 1_000
        inserter = TableInserter(SinkSettings.model_validate(self.clickhouse.model_dump()), sink.table)
        inserter.open()
        block = inserter.new_block()
        raws = [RawRecord("e", 0, first_offset + n, at_ms, b"k", value) for n, value in enumerate(values)]
        assert not block.add_rows([sink.build_row(raw, Decoder()) for raw in raws])
        self._blocks += 1
        inserter.insert_block(block, f"block {self._blocks}", first_try=True)
        inserter.close()

    def refuse_rows(self, age_days: float, *offsets: int) -> None:
        """Insert the refusals of records of that age."""
        values = [
            encode_record(
                RejectedEvent(
                    *("stale_epoch", "said by bob", True, "acme", session_id(1), f"event-{offset}", "usage_recorded"),
                    *("billing", "e", 0, offset, self.at_us(age_days) // 1_000 * 1_000, b"key", b"value"),
                    {"name": b"bob"},
                )
            )
            for offset in offsets
        ]
        self.insert_rows("rejected", age_days, values, offsets[0])

    def let_retention_pass(self) -> None:
        """Merge all tables: what has expired goes."""
        for table in TABLES:
            run_sql(self.clickhouse, f"OPTIMIZE TABLE {self.clickhouse.clickhouse_database}.{table} FINAL")

    def fetch_rows(self, sql: str) -> list[Row]:
        """Return a query's rows; tables need no database."""
        return ClickHouseClient(self.clickhouse).fetch_rows(sql)

    def fetch_values(self, sql: str) -> list[tuple[Any, ...]]:
        """Return a query's rows as tuples."""
        return [tuple(row.values()) for row in self.fetch_rows(sql)]


__all__ = ["TABLES", "AgedRows", "agent_event", "usage"]
