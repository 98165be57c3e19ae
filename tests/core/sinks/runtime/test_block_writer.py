"""What a sink logs about a record that it cannot store."""

import time

import pytest

from sessionary.schemas.codec import Decoder
from sessionary.sinks.core.intent import RecordBlock
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.block_writer import BlockWriter
from sessionary.sinks.runtime.dead_letter_producer import DeadLetterProducer
from sessionary.sinks.settings import SinkSettings
from tests.support.event_factory import EventFactory


def test_a_dead_letter_is_told_with_its_place_and_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Sent(Exception):
        """Stops the writer before it asks ClickHouse for anything."""

    def refuse(*_: object, **__: object) -> None:
        raise Sent

    session = EventFactory().key
    now_ms = time.time_ns() // 1_000_000
    records = [
        RawRecord("sessionary.audit", 3, 7, now_ms, session.encoded(), b"s3cret"),
        RawRecord("sessionary.audit", 3, 8, now_ms, b"s3cret", b"s3cret"),
    ]
    writer = BlockWriter(SINKS["audit"], SinkSettings(), SinkMetrics("audit", "g"), Decoder())
    monkeypatch.setattr(DeadLetterProducer, "send_letters", lambda self, letters: None)
    monkeypatch.setattr(writer._inserter, "open", lambda: None)
    monkeypatch.setattr(writer._inserter, "new_block", lambda *_, **__: _EmptyBlock())
    monkeypatch.setattr(writer._inserter, "insert_block", refuse)
    with pytest.raises(Sent):
        writer.write_block(3, RecordBlock(7, 8, records, None))

    fields = ("tenant_id", "session_id", "partition", "offset", "error_class")
    found = [{name: line.__dict__[name] for name in fields if name in line.__dict__} for line in caplog.records]
    assert found == [
        {**session._asdict(), "partition": 3, "offset": 7, "error_class": "BadRow"},
        {"partition": 3, "offset": 8, "error_class": "BadRow"},
    ]
    assert "s3cret" not in caplog.text


class _EmptyBlock:
    rows = 0

    def add_rows(self, rows: list[object]) -> list[object]:
        return []
