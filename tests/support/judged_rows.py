"""Records that the judge's own rules judge, and what they leave in ClickHouse, without Kafka."""

from collections.abc import Sequence
from typing import Any

from sessionary.producers.testing.judged_event import MEMORY_KEYS
from sessionary.producers.testing.judged_log import Judge
from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.sinks.clickhouse.inserter import TableInserter
from sessionary.sinks.core.rows.shared import NO_HEADERS, RawRecord
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.settings import SinkSettings
from tests.support.aged_rows import AgedRows
from tests.support.event_factory import EventFactory
from tests.support.signing import Headers, with_signature


class _Headed:
    """A message with headers."""

    def __init__(self, headers: Headers) -> None:
        self._headers = list(headers)

    def headers(self) -> list[tuple[str, bytes]]:
        """Return them."""
        return self._headers

    def set_headers(self, headers: list[tuple[str, str | bytes | None]], /) -> None:
        """Do nothing: reading the headers does not fail."""


class JudgedRows:
    """One partition that begins a day ago; each record comes a second after the one before."""

    def __init__(self, rows: AgedRows) -> None:
        self._rows = rows
        self.judge = Judge(1, rows.at_us(1) // 1_000)
        self._history: list[RawRecord] = []

    def append(self, key: bytes, value: bytes, *, replayed: bool = False) -> str:
        """Judge a record; return `applied`, `duplicate`, or the reason of its rejection.

        What only a server role may write is signed.
        """
        self.judge.now_ms += 1_000
        given = [(REPLAYED_FROM, b'"events:0:1"')] if replayed else []
        headers = with_signature(key, value, given, MEMORY_KEYS)
        source = _Headed(headers) if headers else NO_HEADERS
        offset, rejection, repeated_id = self.judge.judge_record(0, key, value, headers)
        self._history.append(RawRecord("events", 0, offset, self.judge.now_ms, key, value, source))
        return rejection or ("applied" if repeated_id is None else "duplicate")

    def send(self, agent: EventFactory, event_type: str, envelope: dict[str, Any] | None = None, **fields: Any) -> str:
        """Judge the next event of an agent."""
        return self.append(agent.key.encoded(), agent.event_bytes(event_type, envelope, **fields))

    def start(self, agent: EventFactory) -> None:
        """Bring an agent's session to Active."""
        outcomes = [self.send(agent, "session_created")]
        outcomes += [self.send(agent, "session_phase_changed", phase=phase) for phase in ("validating", "connecting")]
        assert [*outcomes, self.send(agent, "session_started")] == ["applied"] * 4

    def land(self) -> None:
        """Insert all records so far and what they left. Once per database."""
        self._insert("history", self._history)
        self._insert("rejected", self._outputs(self.judge.rejected_records))
        self._insert("audit", self._outputs(self.judge.audits))

    def _outputs(self, records: Sequence[RejectedEvent | AuditRecord]) -> list[RawRecord]:
        now_ms = self.judge.now_ms
        return [RawRecord("t", 0, n, now_ms, b"k", encode_record(record)) for n, record in enumerate(records)]

    def _insert(self, kind: SinkKind, records: list[RawRecord]) -> None:
        inserter = TableInserter(SinkSettings.model_validate(self._rows.clickhouse.model_dump()), SINKS[kind].table)
        inserter.open()
        block = inserter.new_block()
        assert not block.add_rows([SINKS[kind].build_row(record, Decoder()) for record in records])
        inserter.insert_block(block, f"{kind} of the judge", first_try=True)
        inserter.close()
