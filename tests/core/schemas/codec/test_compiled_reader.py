"""The compiled readers against the general one: the same values of the same types, or no answer at
all.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.codec import (
    SINGLE_OBJECT,
    Decoder,
    Event,
    Record,
    encode_event,
    encode_record,
    read_compiled,
    write_generally,
)
from sessionary.schemas.codec.formats import event_format
from sessionary.schemas.errors import DecodeError, EncodeError
from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import AuditRecord
from tests.support.values import events_of, every_example

GENERAL, COMPILED = Decoder(compiled=False), Decoder()
GOLDEN = json.loads(Path(__file__).parents[3].joinpath("golden", "0.2.0", "bytes.json").read_text("utf-8"))
EXAMPLES = {type(v.payload if isinstance(v, Event) else v).__name__: v for v in every_example()}


def encoded(value: Event | Record) -> bytes:
    return encode_event(value) if isinstance(value, Event) else encode_record(value)


def typed(value: Any) -> object:
    """The value with the types of all its parts: a list is no tuple here."""
    if isinstance(value, Mapping):
        return dict, [(key, typed(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [typed(part) for part in value]
    return type(value), repr(value)


def outcome(read: Callable[[bytes], object], value: bytes) -> object:
    try:
        return typed(read(value))
    except DecodeError as error:
        return error.reason, str(error)


def agree(value: bytes) -> None:
    assert outcome(COMPILED.decode_event, value) == outcome(GENERAL.decode_event, value)
    assert outcome(COMPILED.decode_record, value) == outcome(GENERAL.decode_record, value)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_and_all_that_is_cut_from_them_are_read_alike(name: str) -> None:
    value = bytes.fromhex(GOLDEN[name]["bytes"])
    for end in range(len(value) + 1):
        agree(value[:end])
    agree(value + b"\x00")


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_todays_schemas_write_is_read_without_the_general_reader(name: str) -> None:
    assert read_compiled(encoded(EXAMPLES[name])) == EXAMPLES[name]


@given(st.sampled_from(sorted(PAYLOADS)).flatmap(events_of))
def test_any_event_is_read_alike(event: Event) -> None:
    agree(encode_event(event))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_compiled_writer_writes_what_the_general_one_does(name: str) -> None:
    value = encoded(EXAMPLES[name])
    assert write_generally(EXAMPLES[name], value[:10]) == value


@given(st.sampled_from(sorted(PAYLOADS)).flatmap(events_of))
def test_any_event_is_written_alike(event: Event) -> None:
    value = encode_event(event)
    assert value.startswith(SINGLE_OBJECT)
    assert write_generally(event, value[:10], event_format(event)) == value


WRONG = [None, True, 7, 1.5, "text", b"bytes", 1 << 63, -(1 << 63) - 1, "\ud800", [7], {1: 2}]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_wrong_value_is_refused_alike_in_every_field(name: str, wrong: object) -> None:
    example = EXAMPLES[name]
    part: Any = example.payload if isinstance(example, Event) else example
    for field in part._fields:
        odd = part._replace(**{field: wrong})
        value: Any = example._replace(payload=odd) if isinstance(example, Event) else odd
        written, form = attempt(encoded, value), event_format(value) if isinstance(value, Event) else None
        prefix = written if isinstance(written, bytes) else encoded(example)  # an event may take an older form
        assert written == attempt(partial(write_generally, header=prefix[:10], format_=form), value)


def attempt(write: Callable[[Any], bytes], value: Any) -> object:
    try:
        return write(value)
    except EncodeError as error:
        return str(error)


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


def audit_record(**fields: Any) -> AuditRecord:
    audit = EXAMPLES["AuditRecord"]
    assert isinstance(audit, AuditRecord)
    return audit._replace(**fields)


@pytest.mark.parametrize("number", [0, -1, 63, 64, -64, -65, 1 << 61, 1 << 62, (1 << 63) - 1, -(1 << 63)])
def test_numbers_at_the_edges_are_read_and_written_alike(number: int) -> None:
    record = audit_record(occurred_at=number, bytes_released=number)
    agree(encoded(record))
    assert write_generally(record, encoded(record)[:10]) == encoded(record)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 127, 128, 8_191, 8_192, 100_000])
def test_lengths_and_counts_at_the_edges_are_read_and_written_alike(length: int) -> None:
    record = audit_record(reason="ü" * length, cleanup_actions=("a",) * length)
    agree(encoded(record))
    assert write_generally(record, encoded(record)[:10]) == encoded(record)


@pytest.mark.parametrize("value", [None, b"", b"\xc3\x01", b"\x00\x00\x00\x00\x01x"])
def test_what_has_no_known_beginning_is_read_alike(value: Any) -> None:
    agree(value)
