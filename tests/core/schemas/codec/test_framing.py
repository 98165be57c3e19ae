"""Any bytes give the value or a `DecodeError` with a named reason. Writing is strict."""

import copy
import io
import json
import resource
import struct
from collections.abc import Callable
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionary.schemas.codec import (
    CONFLUENT,
    SINGLE_OBJECT,
    Decoder,
    Event,
    Record,
    encode_confluent,
    encode_event,
    encode_record,
)
from sessionary.schemas.codec.catalogue import current_schemas, schema_fingerprint, writer_schemas
from sessionary.schemas.errors import DecodeError, EncodeError, Unavailable
from sessionary.schemas.events import PAYLOADS, SessionCreated, SessionErrored, SessionStarted, StateUpdated
from sessionary.schemas.records import Position, SessionState, Tick
from sessionary.schemas.types import Envelope, ErrorInfo
from tests.core.schemas.test_types import MemoryRegistry, encoded
from tests.support.values import as_json, events_of, every_example, example, example_event, values

REASONS = {"undecodable", "unknown_schema", "unknown_event_type"}
EXAMPLES = {type(v.payload if isinstance(v, Event) else v).__name__: v for v in every_example()}
Schema = dict[str, Any]


def read_any(value: bytes, decoder: Decoder | None = None) -> Event | Record | None:
    """What both readers make of the bytes; None where they are refused. Anything but `DecodeError`
    escapes.
    """
    found: Event | Record | None = None
    for read in ((decoder or Decoder()).decode_event, (decoder or Decoder()).decode_record):
        try:
            found = read(value)
        except DecodeError as error:
            assert error.reason in REASONS  # noqa: PT017 - no error is as good as this one
    return found


def detail_of(value: bytes) -> str:
    """What the audit trail will say of bytes that are refused; a replay has to say the same."""
    with pytest.raises(DecodeError) as caught:
        Decoder().decode_event(value)
    assert "0x" not in caught.value.detail
    return caught.value.detail


# Writing


WRONG: list[tuple[str, Any]] = [
    ("event_id", None),
    ("event_id", 7),
    ("event_id", b"bytes"),
    ("event_id", "\ud800"),
    ("epoch", "1"),
    ("epoch", True),
    ("epoch", 1.0),
    ("epoch", 1 << 31),
    ("epoch", -(1 << 31) - 1),
    ("producer_seq", 1 << 63),
    ("run_seq", "1"),
    ("run_seq", 1 << 63),
    ("user_id", 5),
    ("data_classes", ["personal", "nonsense"]),
    ("data_classes", "none"),
    ("data_classes", {"none"}),
    ("data_classes", None),
    ("data_classes", [None]),
]


@pytest.mark.parametrize(("field", "wrong"), WRONG)
def test_an_ill_typed_field_is_an_encode_error(field: str, wrong: Any) -> None:
    event = example_event(StateUpdated)
    with pytest.raises(EncodeError) as caught:
        encode_event(event._replace(envelope=event.envelope._replace(**{field: wrong})))
    assert caught.value.reason == "invalid_value"


@pytest.mark.parametrize(
    "value",
    [
        Event(example(Envelope)._replace(event_type="session_started"), example(StateUpdated)),
        Event(example(Envelope)._replace(event_type="nonsense"), example(StateUpdated)),
        Event(example(Envelope)._replace(event_type="session_errored"), SessionErrored(("fatal", "c", "m"))),  # type: ignore[arg-type]
        Event(example(Envelope)._replace(event_type="session_errored"), SessionErrored(ErrorInfo("odd", "c", "m"))),  # type: ignore[arg-type]
        Event(example(Envelope)._replace(event_type="session_errored"), SessionErrored(None)),  # type: ignore[arg-type]
        Event(tuple(example(Envelope)), SessionStarted()),  # type: ignore[arg-type]
        Event(example(Envelope)._replace(event_type="tick"), Tick("x")),  # type: ignore[arg-type]
        Event(example(Envelope), {"base_version": 1}),  # type: ignore[arg-type]
    ],
)
def test_what_fits_no_schema_is_an_encode_error(value: Event) -> None:
    registry = MemoryRegistry()
    with pytest.raises((EncodeError, AttributeError)) as caught:
        encode_event(value)
    assert caught.type is EncodeError or not isinstance(value.envelope, Envelope)
    with pytest.raises((EncodeError, AttributeError)):
        encode_confluent(value, registry)


def test_a_record_of_another_class_is_an_encode_error() -> None:
    for wrong in (example(StateUpdated), {"instance": "x"}, None):
        with pytest.raises(EncodeError):
            encode_record(wrong)  # type: ignore[arg-type]
    with pytest.raises(EncodeError):
        encode_record(example(SessionState)._replace(context_exceeded="no"))
    with pytest.raises(EncodeError):
        encode_record(example(SessionState)._replace(producers=[("p", 1, [])]))


# Broken bytes


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_truncation_and_every_surplus_is_refused(name: str) -> None:
    whole = encoded(EXAMPLES[name])
    for end in range(len(whole)):
        assert read_any(whole[:end]) is None, f"cut at {end} of {len(whole)}"
        assert detail_of(whole[:end]) == detail_of(whole[:end])
    assert read_any(whole + b"\x00") is None
    assert read_any(whole) == EXAMPLES[name]


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=10)), min_size=1, max_size=6),
)
def test_mutated_bytes_end_in_a_value_or_a_decode_error(name: str, edits: list[tuple[int, bytes]]) -> None:
    mutated = bytearray(encoded(EXAMPLES[name]))
    for at, patch in edits:
        start = at % len(mutated)
        mutated[start : start + len(patch)] = patch
    read_any(bytes(mutated))


@settings(max_examples=200)
@given(st.sampled_from(sorted(writer_schemas())), st.binary(max_size=200))
def test_noise_behind_a_known_fingerprint_is_refused_in_bounded_memory(fingerprint: bytes, noise: bytes) -> None:
    read_any(b"\xc3\x01" + fingerprint + noise)


@pytest.mark.parametrize("count", [1 << 62, (1 << 63) - 1, -(1 << 62), -(1 << 63), 1 << 31])
def test_a_huge_count_costs_nothing(count: int) -> None:
    zigzag, varint = (count << 1) ^ (count >> 63), bytearray()
    zigzag &= (1 << 64) - 1
    while zigzag > 0x7F:
        varint.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    varint.append(zigzag)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for value in EXAMPLES.values():
        whole = encoded(value)
        for at in range(10, len(whole), 7):
            read_any(whole[:at] + bytes(varint) + whole[at:])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@given(st.binary(max_size=100))
def test_noise_is_refused(noise: bytes) -> None:
    assert read_any(noise) is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "undecodable"),
        (b"", "undecodable"),
        (b"{}", "undecodable"),
        (b"\xc3\x01", "undecodable"),
        (b"\x00\x00\x00", "undecodable"),
        (b"\xc3\x01" + b"\x00" * 8, "unknown_schema"),
        (b"\x00\x00\x00\x00\x01rest", "unknown_schema"),  # no registry
    ],
)
def test_the_reason_is_named(value: bytes | None, reason: str) -> None:
    for read in (Decoder().decode_event, Decoder().decode_record):
        with pytest.raises(DecodeError) as caught:
            read(value)
        assert caught.value.reason == reason


def test_records_and_events_do_not_stand_in_for_each_other() -> None:
    with pytest.raises(DecodeError) as caught:
        Decoder().decode_event(encode_record(example(Position)))
    assert caught.value.reason == "unknown_event_type"
    with pytest.raises(DecodeError) as caught:
        Decoder().decode_record(encode_event(example_event(StateUpdated)))
    assert caught.value.reason == "unknown_schema"
    assert Decoder().decode_event(encode_record(Tick("a"))) == Tick("a")


# Writers of other versions


def foreign(schema: Any, body: bytes) -> tuple[bytes, Decoder]:
    return CONFLUENT + struct.pack(">I", 0) + body, Decoder(MemoryRegistry(json.dumps(schema)))


def written_by(schema: Schema, value: Event, **payload: Any) -> tuple[bytes, Decoder]:
    """The event as a client of another version writes it."""
    out = io.BytesIO()
    plain = {"envelope": as_json(value.envelope), **as_json(value.payload, bytes), **payload}
    schemaless_writer(out, parse_schema(schema), plain)
    return foreign(schema, out.getvalue())


def changed(name: str, change: Callable[[Schema], None]) -> Schema:
    schema: Schema = copy.deepcopy(current_schemas()[f"sessionary.events.{name}"])
    change(schema)
    return schema


def field_of(schema: Schema, name: str) -> Schema:
    (field,) = (field for field in schema["fields"] if field["name"] == name)
    assert isinstance(field, dict)
    return field


def test_a_foreign_record_name_is_an_unknown_event_type() -> None:
    for namespace, reason in (("sessionary.events", "unknown_event_type"), ("shop", "unknown_schema")):
        schema = {"type": "record", "name": "Nonsense", "namespace": namespace, "fields": []}
        value, decoder = foreign(schema, b"")
        with pytest.raises(DecodeError) as caught:
            decoder.decode_event(value)
        assert caught.value.reason == reason


@pytest.mark.parametrize(
    "event_type",
    [
        "prompt_version_created",
        "prompt_metrics_recorded",
        "replay_performed",
    ],
)
def test_events_without_behaviour_are_no_event_types(event_type: str) -> None:
    assert event_type not in PAYLOADS
    schema = copy.deepcopy(current_schemas()["sessionary.events.SessionStarted"])
    schema["name"] = event_type.title().replace("_", "")
    started = example_event(PAYLOADS["session_started"])
    event = started._replace(envelope=started.envelope._replace(event_type=event_type))
    by_registry, decoder = written_by(schema, event)
    for value, reason in (
        (by_registry, "unknown_event_type"),
        (SINGLE_OBJECT + schema_fingerprint(schema) + by_registry[5:], "unknown_schema"),
    ):
        with pytest.raises(DecodeError) as caught:
            decoder.decode_event(value)
        assert caught.value.reason == reason


def test_a_name_that_does_not_fit_its_record_is_an_unknown_event_type() -> None:
    event = example_event(StateUpdated)
    event = event._replace(envelope=event.envelope._replace(event_type="state_replaced"))
    value, decoder = written_by(current_schemas()["sessionary.events.StateUpdated"], event)
    with pytest.raises(DecodeError) as caught:
        decoder.decode_event(value)
    assert caught.value.reason == "unknown_event_type"


def test_a_symbol_from_the_future_is_unknown() -> None:
    def add(schema: Schema) -> None:
        field_of(schema, "reason")["type"]["symbols"].append("teleported")

    event = Event(example(Envelope)._replace(event_type="session_terminated"), example(PAYLOADS["session_terminated"]))
    value, decoder = written_by(changed("SessionTerminated", add), event, reason="teleported")
    read = decoder.decode_event(value)
    assert read == event._replace(payload=event.payload._replace(reason="UNKNOWN"))  # type: ignore[call-arg]


def test_a_role_from_the_future_keeps_its_name() -> None:
    """R-003-44."""

    def add(schema: Schema) -> None:
        field_of(schema, "known_role")["type"]["symbols"].append("critic")

    event = example_event(PAYLOADS["agent_registered"])
    event = event._replace(payload=event.payload._replace(role="critic"))  # type: ignore[call-arg]
    value, decoder = written_by(changed("AgentRegistered", add), event, known_role="critic")
    read = decoder.decode_event(value)
    assert read == event._replace(payload=event.payload._replace(known_role="UNKNOWN"))  # type: ignore[call-arg]


def test_a_field_from_the_future_is_left_out() -> None:
    def add(schema: Schema) -> None:
        schema["fields"].insert(1, {"name": "colour", "type": {"type": "map", "values": ["null", "string"]}})
        field_of(schema, "envelope")["type"]["fields"].insert(3, {"name": "weight", "type": "double"})

    event = example_event(StateUpdated)
    out = io.BytesIO()
    plain = {"envelope": {**as_json(event.envelope), "weight": 1.5}, **as_json(event.payload), "colour": {"a": "red"}}
    schema = changed("StateUpdated", add)
    schemaless_writer(out, parse_schema(schema), plain)
    value, decoder = foreign(schema, out.getvalue())
    assert decoder.decode_event(value) == event


def test_a_field_that_an_older_writer_did_not_know_takes_its_default() -> None:
    def drop(schema: Schema) -> None:
        schema["fields"].remove(field_of(schema, "parent_session_id"))
        envelope = field_of(schema, "envelope")["type"]
        for name in ("agent_role", "data_classes", "context_bytes"):
            envelope["fields"].remove(field_of(envelope, name))

    event = example_event(SessionCreated)
    assert isinstance(event.payload, SessionCreated)
    value, decoder = written_by(changed("SessionCreated", drop), event)
    expected = Event(
        event.envelope._replace(agent_role=None, data_classes=(), context_bytes=None),
        event.payload._replace(parent_session_id=None),
    )
    assert decoder.decode_event(value) == expected


def test_a_writer_that_lacks_a_needed_field_is_refused() -> None:
    def drop(schema: Schema) -> None:
        schema["fields"].remove(field_of(schema, "state_json"))

    value, decoder = written_by(changed("StateUpdated", drop), example_event(StateUpdated))
    with pytest.raises(DecodeError) as caught:
        decoder.decode_event(value)
    assert caught.value.reason == "undecodable"


R: Schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "R"]}]}
BAD_SCHEMAS: list[Any] = [
    None,
    7,
    "string",
    ["null", "string"],
    {},
    {"type": "record"},
    {"type": "record", "name": "1", "fields": []},
    {"type": "record", "name": "A", "fields": [{"name": "x", "type": "nonsense"}]},
    {"type": "record", "name": "A", "fields": 7},
    R,
    {"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "array", "items": "null"}}]},
    {
        "type": "record",
        "name": "A",
        "fields": [
            {
                "name": "x",
                "type": {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
            }
        ],
    },
    {"type": "record", "name": "A", "fields": [{"name": "x", "type": ["int", {"type": "map", "values": R}]}]},
]


@pytest.mark.parametrize("schema", BAD_SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_a_registry_may_hold_any_schema_and_breaks_nothing(schema: Any) -> None:
    """A recursive schema would overflow the reader's C stack; an empty array would not end."""
    decoder = Decoder(MemoryRegistry(json.dumps(schema), "{ no json"))
    for number in (0, 1):
        with pytest.raises(DecodeError) as caught:
            decoder.decode_event(CONFLUENT + struct.pack(">I", number) + b"\x02" * 1_000_000)
        assert caught.value.reason == "unknown_schema"


def test_a_registry_that_does_not_answer_is_no_fault_of_the_bytes() -> None:
    class Down(MemoryRegistry):
        def get_schema(self, schema_id: int) -> str:
            raise Unavailable(f"schema {schema_id}", 1)

    with pytest.raises(Unavailable):
        Decoder(Down()).decode_event(CONFLUENT + b"\x00\x00\x00\x01x")


@settings(max_examples=30)
@given(data=st.data())
def test_an_event_through_an_evolved_writer_equals_the_event(data: st.DataObject) -> None:
    """Same fields, another order: resolution, not position, finds them."""
    name = data.draw(st.sampled_from(["session_created", "usage_recorded", "llm_decision", "resources_released"]))
    event = data.draw(events_of(name))
    schema = changed(type(event.payload).__name__, lambda schema: schema["fields"].reverse())
    value, decoder = written_by(schema, event)
    assert decoder.decode_event(value) == event


@settings(max_examples=30)
@given(values(Position))
def test_a_position_of_any_numbers_survives(position: Position) -> None:
    assert Decoder().decode_record(encode_record(position)) == position
