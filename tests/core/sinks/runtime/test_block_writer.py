"""What a sink logs about a record that it cannot store, and rows that an encoder leaves to it."""

import time
from itertools import takewhile

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.codec import Decoder
from sessionary.schemas.codec.record_sizes import batch_bytes
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.rules import REJECTED_BYTES_MAX
from sessionary.sinks.clickhouse.native import NativeBlock
from sessionary.sinks.core.intent import Intent, RecordBlock
from sessionary.sinks.core.rows.history import history_row
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.errors import OperatorError, Transient
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.block_writer import BlockWriter, DeadLetterProducer, encode_letter
from sessionary.sinks.settings import SinkSettings
from tests.core.sinks.samples import DECODER, history_block, raw_record
from tests.support.event_factory import EventFactory
from tests.support.mock_cluster import mock_cluster
from tests.support.sink_records import agent_event


def test_a_dead_letter_is_reported_with_its_place_and_session(
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


class _GivesUp:
    """Encodes a record by its row, as a native build's encoder does at once, or gives it up."""

    def __init__(self, block: NativeBlock, given_up: frozenset[int]) -> None:
        self._block, self._given_up = block, given_up

    def encode(self, records: list[RawRecord], first: int, last: int, /) -> tuple[int, list[list[bytes]]]:
        taken = takewhile(lambda record: record.offset not in self._given_up, records[first:last])
        rows = [history_row(record, Decoder()) for record in taken]
        pieces = self._block.encode_rows(rows) if rows else []
        return len(rows), [[bytes(plane) for plane in planes] for planes in pieces]


@given(st.frozensets(st.integers(0, 9)), st.frozensets(st.integers(0, 9)))
def test_rows_keep_their_order_whatever_the_encoder_leaves(given_up: frozenset[int], bad: frozenset[int]) -> None:
    value = agent_event(SessionActivity("llm"))
    records = [RawRecord("t", 1, n, -1 if n in bad else 5 + n, b"k", value) for n in range(10)]
    writer = BlockWriter(SINKS["history"], SinkSettings(), SinkMetrics("history", "g"), Decoder())
    found = []
    for encoder in (None, _GivesUp(history_block(), given_up | bad)):
        block, letters = history_block(), list[tuple[RawRecord, str]]()
        writer._add_portion(block, encoder, history_row, records, letters)
        found.append((block.rows, block.to_bytes(), letters))
    assert found[0] == found[1]
    assert found[0][0] == 10 - len(bad)


class _LossyTable:
    """A table that knows a token, but lost some of its rows."""

    def __init__(self, lost: set[int], *, keeps_again: bool = True) -> None:
        self.lost, self.keeps_again = lost, keeps_again
        self.inserted: list[tuple[str, int]] = []  # tokens, and numbers of rows
        self.stored: set[int] = set()

    def insert_block(self, block: NativeBlock, token: str, *, first_try: bool) -> None:
        self.inserted.append((token, block.rows))
        if ":again:" not in token:
            self.stored = set(range(10)) - self.lost
        elif self.keeps_again:
            assert block.rows == len(self.lost), "no row is sent twice"
            self.stored |= self.lost

    def attach(self, writer: BlockWriter, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, fake in {
            "open": lambda: None,
            "new_block": lambda *_, **__: history_block(),
            "insert_block": self.insert_block,
            "count_rows": lambda *_: len(self.stored),
            "read_places": lambda _: {(1, offset) for offset in self.stored},
            "count_blocks": lambda *_: 1,
        }.items():
            monkeypatch.setattr(writer._inserter, name, fake)


def _history_writer() -> tuple[BlockWriter, RecordBlock]:
    value = agent_event(SessionActivity("llm"))
    records = [RawRecord("t", 1, n, 5 + n, b"k", value) for n in range(10)]
    writer = BlockWriter(SINKS["history"], SinkSettings(), SinkMetrics("history", "g"), Decoder())
    writer._look_at_s = float("inf")  # no block is looked at for its own sake
    return writer, RecordBlock(0, 9, records, None)


@pytest.mark.parametrize("lost", [set(), {0}, {3, 4, 9}, set(range(10))], ids=["none", "first", "some", "all"])
@pytest.mark.parametrize("is_replay", [True, False], ids=["replay", "second try"])
def test_rows_that_a_killed_server_lost_are_inserted_when_their_block_is_repeated(
    lost: set[int], is_replay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, block = _history_writer()
    table = _LossyTable(lost)
    table.attach(writer, monkeypatch)
    if is_replay:
        block = block._replace(replay_of=Intent(9, 10, 0, "id"), topic_id="id")
    else:
        writer.write_block(1, block)
        assert table.inserted == [(block.insert_token(writer._group, writer._topic, 1), 10)], "it is not looked at"
    table.inserted.clear()
    writer.write_block(1, block)
    token = block.insert_token(writer._group, writer._topic, 1)
    again = [(f"{token}:again:{10 - len(lost)}", len(lost))] if lost else []
    assert table.inserted == [(token, 10), *again]
    assert table.stored == set(range(10))


def test_a_server_that_keeps_lost_rows_under_no_token_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, block = _history_writer()
    _LossyTable({3}, keeps_again=False).attach(writer, monkeypatch)
    with pytest.raises(OperatorError, match="10 rows sent twice, 9 found"):
        writer.write_block(1, block._replace(replay_of=Intent(9, 10, 0, "id"), topic_id="id"))


def test_a_value_too_large_for_a_letter_is_left_out_and_the_letter_says_so() -> None:
    fits, large = raw_record(b"v" * 1_000_000), raw_record(b"v" * REJECTED_BYTES_MAX)
    whole, letter = (DECODER.decode_record(encode_letter(found, "why").value) for found in (fits, large))
    assert isinstance(whole, RejectedEvent)
    assert isinstance(letter, RejectedEvent)
    assert whole.value == fits.value
    assert (letter.value, letter.headers, letter.source_offset) == (None, {}, 42)
    assert f"why (value of {REJECTED_BYTES_MAX} bytes left out" in letter.detail


@pytest.mark.parametrize("key_bytes", [1_100_000, REJECTED_BYTES_MAX, 20_000_000])
def test_a_letter_fits_whatever_the_size_of_the_key(key_bytes: int) -> None:
    key, value = encode_letter(raw_record(b"v", key=b"k" * key_bytes), "why")
    assert batch_bytes(key, value) <= REJECTED_BYTES_MAX
    letter = DECODER.decode_record(value)
    assert isinstance(letter, RejectedEvent)
    assert letter.value == b"v"


def test_letters_that_are_not_acknowledged_go_out_by_a_new_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionary.sinks.runtime.block_writer._FLUSH_TIMEOUT_S", 0.01)
    producer = DeadLetterProducer(SinkSettings(bootstrap_servers="127.0.0.1:1"), "audit")
    former = producer._open_producer()
    for _ in range(2):
        with pytest.raises(Transient, match="did not acknowledge"):
            producer.send_letters([(raw_record(b"v"), "why")])
    assert producer._open_producer() is not former


def test_letters_of_a_producer_with_a_fatal_error_go_out_by_a_new_one() -> None:
    init_producer_id = 22  # Kafka's API key
    with mock_cluster() as cluster:
        settings = SinkSettings(bootstrap_servers=cluster.bootstrap_servers, topic_prefix="t")
        cluster.create_topic(settings.topics.sink_rejected, [1] * settings.partitions)
        cluster.refuse_request(init_producer_id, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        producer = DeadLetterProducer(settings, "audit")
        former = producer._open_producer()
        with pytest.raises(Transient, match="Cluster authorization failed"):
            producer.send_letters([(raw_record(b"v"), "why")])
        producer.send_letters([(raw_record(b"v"), "why")])
        assert producer._open_producer() is not former
