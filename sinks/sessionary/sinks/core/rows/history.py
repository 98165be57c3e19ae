"""Rows of the table `history`: every record of the events topic, readable or not.

This is the sinks' hot path: nearly all of their rows are built here.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import EVENT_TYPES
from sessionary.schemas.headers import Headers, headers_beyond_envelope, read_headers
from sessionary.schemas.limits import REPORTED_MAX_US, REPORTED_MIN_US
from sessionary.schemas.records import QuotaVerdict, RulesActivation, Tick
from sessionary.schemas.retention import PERSONAL_TAG, retention_of, unknown_retention
from sessionary.schemas.types import Envelope, Snapshot
from sessionary.sinks.core.payload_json import cut_text, payload_text
from sessionary.sinks.core.rows.shared import (
    EMPTY_ENVELOPE,
    RawRecord,
    TableRow,
    check_log_time,
    envelope_from_key,
    expiry_seconds,
    reported_time,
)

# Columns of `history` with the values of a payload that figures need, without a TTL; pure.
#
# The table computes them from `payload_json` for rows that come without them, from the former
# release's sinks. The values here are the same; the engine has less to do.


# By column: the value of rows that have none, and where events have it.
_FIGURES: Final[dict[str, tuple[object, dict[str, str]]]] = {
    "model": (None, {"usage_recorded": "model"}),
    "tokens_in": (0, {"usage_recorded": "tokens_in"}),
    "tokens_out": (0, {"usage_recorded": "tokens_out"}),
    "model_cost_usd_nanos": (0, {"usage_recorded": "model_cost_usd_nanos"}),
    "tool_cost_usd_nanos": (0, {"usage_recorded": "tool_cost_usd_nanos"}),
    "is_timeout_retry": (False, {"usage_recorded": "is_timeout_retry"}),
    "cache_read_input_tokens": (0, {"usage_recorded": "cache_read_input_tokens"}),
    "cache_write_input_tokens": (0, {"usage_recorded": "cache_write_input_tokens"}),
    "reasoning_output_tokens": (0, {"usage_recorded": "reasoning_output_tokens"}),
    "retries": (0, {"usage_recorded": "retries"}),
    "execution_time_ms": (
        None,
        dict.fromkeys(("tool_call_succeeded", "tool_call_failed", "step_succeeded"), "execution_time_ms"),
    ),
    "time_to_first_token_ms": (None, {"usage_recorded": "time_to_first_token_ms"}),
    "state_bytes": (
        None,
        {
            "state_updated": "state_json",
            "txn_committed": "state_json",
            "session_created": "snapshot",
            "snapshot_created": "snapshot",
        },
    ),
    "state_version": (None, {"state_updated": "new_version"}),
}
FIGURE_COLUMNS: Final = tuple(_FIGURES)
NO_FIGURES: Final = tuple(absent for absent, _ in _FIGURES.values())


def figure_places(event_type: str) -> Mapping[str, str]:
    """Return where events of a type have figures: by column, the field's path in the payload."""
    return {column: fields[event_type] for column, (_, fields) in _FIGURES.items() if event_type in fields}


def _getter(column: str, path: str) -> Callable[[Any], object]:
    get: Callable[[Any], Any] = attrgetter(path)
    if column == "model":
        return lambda payload: None if (text := get(payload)) is None else cut_text(text)
    if path == "snapshot":
        return lambda payload: _whole_bytes(get(payload))
    if column == "state_bytes":
        return lambda payload: len(get(payload).encode())
    return get


def _whole_bytes(snapshot: Snapshot) -> int | None:
    is_whole = snapshot.encoding == "full" and snapshot.compression == "none"
    return len(snapshot.state_json.encode()) if is_whole else None


# By the class of a payload: the places of its figures among the columns, and their getter.
_GETTERS: Final[dict[type[Any], list[tuple[int, Callable[[Any], object]]]]] = {
    cls: [(FIGURE_COLUMNS.index(column), _getter(column, path)) for column, path in figure_places(name).items()]
    for cls, name in EVENT_TYPES.items()
    if figure_places(name)
}


def figures_of(payload: object) -> tuple[object, ...]:
    """Return the values of `FIGURE_COLUMNS` for an event's payload."""
    getters = _GETTERS.get(type(payload))
    if getters is None:
        return NO_FIGURES
    values = list(NO_FIGURES)
    for place, get in getters:
        values[place] = get(payload)
    return tuple(values)


HISTORY_COLUMNS: Final = (
    *("source_partition", "source_offset", "appended_at", "decode_error"),
    *Envelope._fields,
    *("payload_json", "key_bytes", "value_bytes", "headers"),
    *("retention_class", "retain_until", "personal_until", "personal_expires", "src_topic", "value_size"),
    *FIGURE_COLUMNS,
    "occurred_at_text",
)
# The processors' own records on the events topic.
_RECORD_TYPES: Final[dict[type[Tick | RulesActivation | QuotaVerdict], str]] = {
    Tick: "tick",
    RulesActivation: "rules_activation",
    QuotaVerdict: "quota_verdict",
}

# Ticks and heartbeats are kept for a shorter time, unless a law says how long.
_IDLE_CLASS: Final = "idle"
_IDLE_TYPES: Final = frozenset({"tick", "heartbeat"})
_SHORTENED_CLASSES: Final = frozenset({"default", PERSONAL_TAG})


def history_row(raw: RawRecord, decoder: Decoder) -> TableRow:
    """Return the row of `HISTORY_COLUMNS`.

    Undecodable bytes get a row too, with the reason in `decode_error`. Headers that cannot be read
    are stored as `UNREADABLE_HEADERS`. Raises `BadRow` only for a record without a usable log time,
    `Unavailable` if a schema cannot be fetched.
    """
    # Unpacking a plain tuple is faster than unpacking a named one.
    topic, partition, offset, timestamp_ms, key, value, header_source = raw[:]
    appended = check_log_time("the record's timestamp", timestamp_ms * 1_000)
    headers: Headers = read_headers(header_source) or ()
    error, figures, time_text = "", NO_FIGURES, ""
    try:
        decoded = decoder.decode_event(value)
    except DecodeError as failure:
        error, envelope, text = failure.reason, envelope_from_key(raw), ""
        retention = unknown_retention(appended)
    else:
        if isinstance(decoded, Event):
            envelope, payload = decoded[:]
            text, headers = payload_text(payload), headers_beyond_envelope(envelope, headers)
            figures = figures_of(payload)
            if not REPORTED_MIN_US <= envelope.occurred_at <= REPORTED_MAX_US:
                occurred_at, time_text = reported_time(envelope.occurred_at)
                envelope = envelope._replace(occurred_at=occurred_at)
        else:
            envelope = EMPTY_ENVELOPE._replace(event_type=_RECORD_TYPES[type(decoded)], occurred_at=appended)
            text = payload_text(decoded)
        retention = retention_of(envelope.data_classes, appended)
    name, retain_until, personal_until = retention[:]
    name = class_of_row(name, envelope.event_type)
    # Adding tuples takes two thirds of the time of unpacking them into one.
    return (
        (partition, offset, timestamp_ms, error)  # noqa: RUF005
        + envelope
        + (text, key, value, headers)
        + (name, retain_until, personal_until, expiry_seconds(personal_until), topic, raw.size)
        + figures
        + (time_text,)
    )


def class_of_row(retention_class: str, event_type: str) -> str:
    """Return the class of retention of a row, by that of its data."""
    if event_type in _IDLE_TYPES and retention_class in _SHORTENED_CLASSES:
        return _IDLE_CLASS
    return retention_class
