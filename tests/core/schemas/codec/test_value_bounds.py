"""Every text, list and number of every event has a bound, and the check names what exceeds it."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest

from sessionary.schemas.codec import Event
from sessionary.schemas.codec.value_bounds import find_invalid_value, find_long_text
from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.limits import (
    CONTENT_CHARACTERS_MAX,
    CONTENTS,
    ITEMS_MAX,
    NAME_CHARACTERS_MAX,
    NUMBER_MAX,
    ROW_CONTENTS,
    TEXT_CHARACTERS_MAX,
    TEXTS,
    UNBOUNDED_NUMBERS,
    characters_max,
)
from sessionary.schemas.types import Envelope, Limits
from tests.support.values import UNIONS, example_event, field_types, is_record_class

# Path of a value below a payload, class and field that have it, and a path as people read it.
Place = tuple[tuple[Any, ...], str, str, str]
EVENTS = [example_event(payload) for payload in PAYLOADS.values()]
CHECKED_BY_THE_JUDGE = {"epoch", "producer_seq"}


def places(value: Any, path: tuple[Any, ...] = (), owner: str = "", field: str = "", text: str = "") -> Iterator[Place]:
    """Yield the place of every leaf and every list of a value."""
    if isinstance(value, Limits):
        return
    if is_record_class(type(value)):
        for name, part in zip(value._fields, value, strict=True):
            yield from places(part, (*path, name), type(value).__name__, name, f"{text}.{name}" if text else name)
        return
    yield path, owner, field, text
    if isinstance(value, tuple):
        yield from places(value[0], (*path, 0), owner, field, f"{text}[]")
    elif isinstance(value, dict):
        yield from places(next(iter(value.values())), (*path, None), owner, field, f"{text}[]")


def value_at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = next(iter(value.values())) if step is None else getattr(value, step) if step else value[0]
    return value


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a value with another part at `path`."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if step is None:
        return {name: replaced(part, rest, new) for name, part in value.items()}
    if step == 0:
        return (replaced(value[0], rest, new),)
    return value._replace(**{step: replaced(getattr(value, step), rest, new)})


def with_payload(event: Event, path: tuple[Any, ...], new: Any) -> Event:
    return event._replace(payload=replaced(event.payload, path, new))


def changed(record: Any, fields: dict[str, Any]) -> Any:
    """Return a record with other values in these fields."""
    return record._replace(**fields)


def enum_fields(cls: type[Any]) -> set[str]:
    """Return the fields whose texts come from a list."""
    return {name for name, hint, _ in field_types(cls) if "Literal" in str(hint)}


def event_type_of(event: Event) -> str:
    return event.envelope.event_type


@pytest.mark.parametrize("event", EVENTS, ids=event_type_of)
def test_every_value_of_a_payload_is_bounded(event: Event) -> None:
    assert find_invalid_value(event) == ""
    for path, owner, field, text in places(event.payload):
        value = value_at(event.payload, path)
        if isinstance(value, str):
            check_text(event, path, characters_max(owner, field), text)
        elif isinstance(value, tuple | dict):
            full = {f"{n}": "x" for n in range(ITEMS_MAX)} if isinstance(value, dict) else (value[0],) * ITEMS_MAX
            more = {**full, "more": "x"} if isinstance(full, dict) else (*full, full[0])
            assert find_invalid_value(with_payload(event, path, full)) == ""
            detail = f"{text} has {ITEMS_MAX + 1} items, more than {ITEMS_MAX}"
            assert find_invalid_value(with_payload(event, path, more)) == detail
        elif isinstance(value, float):
            for number in (float("nan"), float("inf"), -float("inf")):
                assert find_invalid_value(with_payload(event, path, number)).startswith(f"{text} is ")
            assert find_invalid_value(with_payload(event, path, -1e300)) == ""
        elif isinstance(value, bytes):  # content in the session's row, as `state_json` is
            assert find_invalid_value(with_payload(event, path, b"x" * 5_000_000)) == ""
        elif not isinstance(value, bool):
            check_number(event, path, field, text)


def check_text(event: Event, path: tuple[Any, ...], most: int | None, text: str) -> None:
    if most is None:
        assert find_invalid_value(with_payload(event, path, "x" * 5_000_000)) == ""
        return
    assert find_invalid_value(with_payload(event, path, "ü" * most)) == ""
    detail = find_invalid_value(with_payload(event, path, "ü" * (most + 1)))
    owner = value_at(event.payload, path[:-1])
    if is_record_class(type(owner)) and path[-1] in enum_fields(type(owner)):
        assert detail == ""  # its bytes are a place in a list
    else:
        assert detail == f"{text} has {most + 1} characters, more than {most}"


def check_number(event: Event, path: tuple[Any, ...], field: str, text: str) -> None:
    for number in (-1, NUMBER_MAX + 1):
        wanted = "" if field in UNBOUNDED_NUMBERS else f"{text} is {number}; it must be from 0 to {NUMBER_MAX}"
        assert find_invalid_value(with_payload(event, path, number)) == wanted
    for number in (0, NUMBER_MAX):
        assert find_invalid_value(with_payload(event, path, number)) == ""


def test_every_value_of_an_envelope_is_bounded() -> None:
    event = EVENTS[0]
    for name, value in event.envelope._asdict().items():
        if isinstance(value, str):
            fitting, longer = (changed(event.envelope, {name: "x" * size}) for size in (256, 257))
            assert find_long_text(fitting) == ""
            assert find_long_text(longer) == f"{name} has 257 characters, more than 256"
        elif isinstance(value, tuple):
            many = changed(event.envelope, {name: value * (ITEMS_MAX + 1)})
            assert find_long_text(many) == f"{name} has {ITEMS_MAX + 1} items, more than {ITEMS_MAX}"
        elif name not in UNBOUNDED_NUMBERS | CHECKED_BY_THE_JUDGE:
            negative = event._replace(envelope=changed(event.envelope, {name: -1}))
            assert find_invalid_value(negative) == f"{name} is -1; it must be from 0 to {NUMBER_MAX}"


def test_optional_values_may_be_missing() -> None:
    for event in EVENTS:
        missing = {
            name: None
            for name, hint, _ in field_types(type(event.payload))
            if get_origin(hint) in UNIONS and type(None) in get_args(hint)
        }
        assert find_invalid_value(event._replace(payload=changed(event.payload, missing))) == ""
    envelope = EVENTS[0].envelope
    absent = {name: None for name, hint, _ in field_types(Envelope) if type(None) in get_args(hint)}
    assert find_long_text(changed(envelope, absent)) == ""


def test_only_times_and_limits_have_no_bound() -> None:
    times = {
        name
        for cls in (*PAYLOADS.values(), Envelope)
        for name, _, avro in field_types(cls)
        for branch in (avro if isinstance(avro, list) else [avro])
        if isinstance(branch, dict) and branch.get("logicalType") == "timestamp-micros"
    }
    assert {*times, "accessed_at", "at", "limits"} == UNBOUNDED_NUMBERS


def test_the_lists_of_long_texts_name_fields_that_exist() -> None:
    known = {(owner, field) for event in EVENTS for _, owner, field, _ in places(event.payload)}
    names = {field for _, field in known} | {f"{owner}.{field}" for owner, field in known}
    assert names >= TEXTS | CONTENTS | ROW_CONTENTS
    assert NAME_CHARACTERS_MAX < TEXT_CHARACTERS_MAX < CONTENT_CHARACTERS_MAX
