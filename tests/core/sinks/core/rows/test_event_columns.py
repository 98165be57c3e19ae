"""Columns made of events' bytes at once: the same bytes as by rows, or given up.

Only a native build has an encoder. `make soak PART=compiled` runs these tests in one.
"""

import json
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.codec import Decoder, Event, encode_event, encode_record
from sessionary.schemas.errors import EncodeError
from sessionary.schemas.events import PAYLOADS, LlmDecision, MessageAppended, StateUpdated
from sessionary.schemas.headers import HeaderSource, event_headers
from sessionary.schemas.limits import REPORTED_MAX_US
from sessionary.schemas.records import Tick
from sessionary.schemas.types import DataClass
from sessionary.sinks.core.payload_json import TEXT_MAX
from sessionary.sinks.core.rows import event_columns
from sessionary.sinks.core.rows.event_columns import find_encoder
from sessionary.sinks.core.rows.history import HISTORY_COLUMNS
from sessionary.sinks.core.rows.shared import TIME_MAX_US, RawRecord, RecordEncoder
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.block_writer import BlockWriter
from sessionary.sinks.settings import SinkSettings
from tests.core.sinks.samples import DECODER, encoded_activity, history_block, message_with, raw_record
from tests.support.broken_headers import BrokenMessage
from tests.support.sink_records import NOW_US, agent_event, usage
from tests.support.values import events_of, example_event

GOLDEN = json.loads(Path(__file__).parents[4].joinpath("golden", "0.2.0", "bytes.json").read_text("utf-8"))
IS_NATIVE = str(event_columns.__file__).endswith(tuple(EXTENSION_SUFFIXES))
needs_encoder = pytest.mark.skipif(not IS_NATIVE, reason="the Python build has no encoder; make native makes one")


def an_encoder() -> RecordEncoder:
    found = find_encoder(history_block().given_columns)
    assert found is not None
    return found


WRITER = BlockWriter(SINKS["history"], SinkSettings(), SinkMetrics("history", "g"), Decoder())


def written(records: list[RawRecord], encoder: RecordEncoder | None) -> tuple[int, bytes, list[tuple[RawRecord, str]]]:
    block, letters = history_block(), list[tuple[RawRecord, str]]()
    WRITER._add_portion(block, encoder, SINKS["history"].build_row, records, letters)
    return block.rows, block.to_bytes(), letters


def agree(*records: RawRecord) -> None:
    assert written(list(records), an_encoder()) == written(list(records), None)


def taken(*records: RawRecord) -> int:
    """How many records the encoder takes, of the first ones; then all agree."""
    agree(*records)
    return an_encoder().encode(list(records), 0, len(records))[0]


def with_headers(value: bytes, source: HeaderSource) -> RawRecord:
    return raw_record(value)._replace(header_source=source)


def own_headers(value: bytes) -> list[tuple[str, bytes]]:
    event = DECODER.decode_event(value)
    assert isinstance(event, Event)
    return event_headers(event.envelope)


def test_a_build_has_an_encoder_if_it_is_native_and_the_columns_are_its_own() -> None:
    columns = history_block().given_columns
    assert [name for name, _ in columns] == list(HISTORY_COLUMNS)
    assert (find_encoder(columns) is not None) == IS_NATIVE
    assert find_encoder(columns[1:]) is None
    assert find_encoder([(name, kind.replace("UInt32", "UInt64")) for name, kind in columns]) is None


@needs_encoder
def test_an_event_of_every_type_is_taken() -> None:
    records = [raw_record(encode_event(example_event(payload))) for payload in PAYLOADS.values()]
    assert taken(*records) == len(records)


@needs_encoder
@pytest.mark.parametrize("name", [name for name in GOLDEN if name in {cls.__name__ for cls in PAYLOADS.values()}])
def test_released_bytes_and_all_that_is_cut_from_them_agree(name: str) -> None:
    value = bytes.fromhex(GOLDEN[name]["bytes"])
    assert taken(raw_record(value)) == 1
    agree(*(raw_record(value[:end]) for end in range(len(value) + 1)), raw_record(value + b"\0"))


@needs_encoder
@given(st.lists(st.sampled_from(sorted(PAYLOADS)).flatmap(events_of), max_size=5))
def test_any_events_agree(events: list[Event]) -> None:
    records = []
    for event in events:
        try:
            value, headers = encode_event(event), event_headers(event.envelope)
        except (EncodeError, ValueError, OverflowError, OSError):
            continue
        records.append(with_headers(value, message_with(*headers)))
    agree(*records)


@needs_encoder
@given(
    st.sampled_from(sorted(PAYLOADS)),
    st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=11)), min_size=1, max_size=3),
)
def test_damaged_bytes_agree(name: str, edits: list[tuple[int, bytes]]) -> None:
    whole = encode_event(example_event(PAYLOADS[name]))
    value = bytearray(whole)
    for place, new in edits:
        at = 10 + place % (len(value) - 10)
        value[at : at + len(new)] = new
    agree(raw_record(whole), raw_record(bytes(value)), raw_record(whole))


@needs_encoder
@pytest.mark.parametrize("text", ["x", '"', "é", "\U0001f600", "\n", "\x01\x1f\x7f\b\f\r\t\\/", "aé\0"])
def test_texts_are_cut_and_escaped_alike(text: str) -> None:
    for length in (0, 1, TEXT_MAX - 1, TEXT_MAX, TEXT_MAX + 1, 5 * TEXT_MAX):
        long = (text * length)[:length]
        values = (MessageAppended("user", long), LlmDecision("m", (long, "b")), StateUpdated(1, 2, json.dumps(long)))
        assert taken(*(raw_record(agent_event(value)) for value in values)) == 3


@needs_encoder
def test_an_escape_at_any_place_agrees() -> None:
    # Texts are looked at in eights of bytes, and written in pieces of 256.
    places = [*range(18), 253, 254, 255, 256, 257, 300]
    texts = ["x" * place + char + "y" * (300 - place) for place in places for char in '"\\\0\x1f\x20!\x7fé']
    texts += ["\x01" * length for length in (7, 8, 255, 256, 257, 600)]
    assert taken(*(raw_record(agent_event(MessageAppended("user", text))) for text in texts)) == len(texts)


@needs_encoder
def test_numbers_agree() -> None:
    fractions = (0.0, -0.0, 0.1, 1e16, 1e22, 1.5e-7, 5e-324, 1.7976931348623157e308, 100.0, 1 / 3)
    assert taken(*(raw_record(agent_event(LlmDecision("m", threshold=value))) for value in fractions)) == len(fractions)
    for value in (float("inf"), float("-inf"), float("nan")):
        assert taken(raw_record(agent_event(LlmDecision("m", threshold=value)))) == 0
    numbers = (0, 1, -1, 9, 10, (1 << 31) - 1, -(1 << 31), (1 << 62) - 1, -(1 << 62))
    assert taken(*(raw_record(usage(tokens=number)) for number in numbers)) == len(numbers)
    agree(*(raw_record(usage(tokens=number)) for number in ((1 << 63) - 1, -(1 << 63))))
    agree(*(raw_record(usage(schema_version=number)) for number in (0, (1 << 31) - 1, -5)))


@needs_encoder
def test_headers_agree() -> None:
    value = encoded_activity("none")
    own: list[tuple[str, bytes | None]] = [*own_headers(value)]
    odd: list[list[tuple[str, bytes | None]]] = [
        own[:-1],
        own[1:],
        [*own[:-1], ("ce_time", b"x")],
        [*own[:2], ("ce_id", None), *own[3:]],
        own[::-1],
        [],
    ]
    more: list[tuple[str, bytes | None]] = [("x", b"1"), ("é", b""), ("none", None), ("x", b"\xff" * 200)]
    sources = [message_with(*own, *more), message_with(*more), *(message_with(*headers) for headers in odd)]
    assert taken(*(with_headers(value, source) for source in sources)) == len(sources)
    assert taken(raw_record(value)._replace(header_source=BrokenMessage())) == 1
    assert taken(RawRecord("t.é", 3, 42, NOW_US // 1_000, None, value)) == 1
    for occurred_at in (0, 999_999, 1_000_000, NOW_US - NOW_US % 1_000_000, REPORTED_MAX_US):
        value = encoded_activity(occurred_at=occurred_at)
        assert taken(with_headers(value, message_with(*own_headers(value)))) == 1


@needs_encoder
def test_times_and_places_agree() -> None:
    value = encoded_activity("personal", "financial")
    for time_ms in (0, NOW_US // 1_000, TIME_MAX_US // 1_000 - 1, 1_709_164_800_000):  # the last one: 29 February
        assert taken(raw_record(value, timestamp_ms=time_ms), raw_record(value, timestamp_ms=time_ms + 1)) in (1, 2)
    for time_ms in (-1, TIME_MAX_US // 1_000):
        assert taken(raw_record(value, timestamp_ms=time_ms)) == 0
    for wrong_us in (-1, -(1 << 62), REPORTED_MAX_US + 1):
        assert taken(raw_record(encoded_activity(occurred_at=wrong_us))) == 0
    for key in (None, b"", b"\xff" * 300):
        assert taken(raw_record(value, key=key)) == 1
    assert taken(raw_record(value)._replace(partition=(1 << 32) - 1, offset=1 << 40)) == 1


@needs_encoder
@given(st.lists(st.sampled_from(("none", "personal", "financial", "medical")), max_size=5))
def test_retention_agrees(classes: list[DataClass]) -> None:
    values = (encoded_activity(*classes), agent_event(example_event(PAYLOADS["heartbeat"]).payload, *classes))
    assert taken(*(raw_record(value) for value in values)) == 2


@needs_encoder
def test_what_is_no_event_is_left_to_rows_in_its_place() -> None:
    good, odd = raw_record(encoded_activity()), [None, b"", b"junk", b"\0\0\0\0\x07x", encode_record(Tick("i1"))]
    for value in odd:
        assert taken(raw_record(value)) == 0
    agree(good, *(raw_record(value) for value in odd), good, good, raw_record(None), good)
    assert len(written([good, raw_record(None, timestamp_ms=-1), good], an_encoder())[2]) == 1
