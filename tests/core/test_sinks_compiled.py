"""The compiled readers against the general decoder, and payloads as JSON against the plainest way to write them."""

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.catalogue import released_schemas, schema_fingerprint
from sessionary.schemas.codec import SINGLE_OBJECT, Decoder, Event, Record, encode_event, encode_record
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import AuditRecord, BatchRecord, RejectedEvent, Tick
from sessionary.sinks.compiled import QuickDecoder
from sessionary.sinks.rows import json_text
from tests.support.values import events_of, every_example, values

GENERAL = Decoder()
QUICK = QuickDecoder(GENERAL)
GOLDEN = json.loads(Path(__file__).parents[1].joinpath("golden", "0.1.0.json").read_text("utf-8"))
EXAMPLES = {type(v.payload if isinstance(v, Event) else v).__name__: v for v in every_example()}
RECORDS = (AuditRecord, BatchRecord, RejectedEvent, Tick)


class _Silent(Decoder):
    """Must not be asked."""

    def event(self, value: bytes | None) -> Event | Tick:
        raise AssertionError(value)

    def record(self, value: bytes | None) -> Record:
        raise AssertionError(value)


ALONE = QuickDecoder(_Silent())


def encoded(value: Event | Record) -> bytes:
    return encode_event(value) if isinstance(value, Event) else encode_record(value)


def outcome(read: Callable[[bytes], object], value: bytes) -> object:
    """What was read, with the types of all its parts, or the error."""
    try:
        return typed(read(value))
    except DecodeError as error:
        return error.reason, str(error)


def typed(value: Any) -> object:
    if isinstance(value, Mapping):
        return dict, [(key, typed(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [typed(part) for part in value]
    return type(value), repr(value)


def agree(value: bytes) -> None:
    assert outcome(QUICK.event, value) == outcome(GENERAL.event, value)
    assert outcome(QUICK.record, value) == outcome(GENERAL.record, value)


@pytest.mark.parametrize("name", GOLDEN)
def test_released_bytes_and_all_that_is_cut_from_them_are_read_alike(name: str) -> None:
    value = bytes.fromhex(GOLDEN[name]["bytes"])
    for end in range(len(value) + 1):
        agree(value[:end])
    agree(value + b"\x00")


@pytest.mark.parametrize("event_type", PAYLOADS)
def test_every_event_is_read_without_the_general_decoder(event_type: str) -> None:
    event = EXAMPLES[PAYLOADS[event_type].__name__]
    assert isinstance(event, Event)
    assert typed(ALONE.event(encoded(event))) == typed(GENERAL.event(encoded(event)))


@pytest.mark.parametrize("cls", RECORDS)
def test_every_record_of_a_sink_is_read_without_the_general_decoder(cls: type[Any]) -> None:
    value = encoded(EXAMPLES[cls.__name__])
    read = (ALONE.event, GENERAL.event) if cls is Tick else (ALONE.record, GENERAL.record)
    assert typed(read[0](value)) == typed(read[1](value))


@given(st.sampled_from(sorted(PAYLOADS)).flatmap(events_of))
def test_random_events_are_read_alike(event: Event) -> None:
    agree(encoded(event))


@given(st.sampled_from(RECORDS).flatmap(values))
def test_random_records_are_read_alike(record: Any) -> None:
    agree(encoded(record))


@given(
    st.sampled_from(sorted(GOLDEN)),
    st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=11)), min_size=1, max_size=3),
)
def test_damaged_bytes_are_read_alike(name: str, edits: list[tuple[int, bytes]]) -> None:
    value = bytearray.fromhex(GOLDEN[name]["bytes"])
    for place, new in edits:
        at = 10 + place % (len(value) - 10)
        value[at : at + len(new)] = new
    agree(bytes(value))


@given(st.sampled_from(sorted(GOLDEN)), st.binary(max_size=60))
def test_noise_behind_a_known_beginning_is_read_alike(name: str, noise: bytes) -> None:
    agree(bytes.fromhex(GOLDEN[name]["bytes"])[:10] + noise)


@pytest.mark.parametrize("number", [0, -1, 63, 64, -64, -65, 1 << 61, 1 << 62, (1 << 63) - 1, -(1 << 63)])
def test_numbers_at_the_edges_are_read_alike(number: int) -> None:
    audit = EXAMPLES["AuditRecord"]
    assert isinstance(audit, AuditRecord)
    agree(encoded(audit._replace(occurred_at=number, bytes_released=number)))


@pytest.mark.parametrize("length", [0, 1, 63, 64, 127, 128, 8_191, 8_192, 100_000])
def test_lengths_and_counts_at_the_edges_are_read_alike(length: int) -> None:
    audit = EXAMPLES["AuditRecord"]
    assert isinstance(audit, AuditRecord)
    agree(encoded(audit._replace(reason="ü" * length, cleanup_actions=("a",) * length)))


@pytest.mark.parametrize("version", released_schemas())
def test_released_schemas_that_are_no_longer_current_are_left_to_the_general_decoder(version: str) -> None:
    for schema in released_schemas()[version].values():
        agree(SINGLE_OBJECT + schema_fingerprint(schema) + bytes(64))


@pytest.mark.parametrize("value", [None, b"", b"\xc3\x01", b"\x00\x00\x00\x00\x01x"])
def test_what_has_no_known_beginning_is_left_to_the_general_decoder(value: Any) -> None:
    agree(value)


def plainest(value: Any) -> Any:
    """As JSON has it, by the simplest rules."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plainest(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {name: plainest(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plainest(part) for part in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@given(st.sampled_from(sorted(PAYLOADS)).flatmap(lambda name: values(PAYLOADS[name])))
def test_a_payload_as_json_is_the_same_text_as_ever(payload: Any) -> None:
    assert json_text(payload) == json.dumps(plainest(payload), ensure_ascii=False, separators=(",", ":"))
    assert json_text((b"\xff", payload)) == json.dumps(
        plainest((b"\xff", payload)), ensure_ascii=False, separators=(",", ":")
    )
