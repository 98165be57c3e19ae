"""Columns of `history` that keep what figures need of a payload, without a TTL; pure.

The table makes them of `payload_json` for rows that come without them, as the former release's
sinks write. The values here are the same; the engine has less to do.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from sessionary.schemas.events import EVENT_TYPES
from sessionary.sinks.core.payload_json import cut_text

# By column: the value of rows that have none, and where events have it.
_FIGURES: Final[dict[str, tuple[object, dict[str, str]]]] = {
    "model": (None, {"usage_recorded": "model"}),
    "tokens_in": (0, {"usage_recorded": "tokens_in"}),
    "tokens_out": (0, {"usage_recorded": "tokens_out"}),
    "model_cost_usd_micros": (0, {"usage_recorded": "model_cost_usd_micros"}),
    "tool_cost_usd_micros": (0, {"usage_recorded": "tool_cost_usd_micros"}),
    "is_timeout_retry": (False, {"usage_recorded": "is_timeout_retry"}),
    "execution_time_ms": (
        None,
        dict.fromkeys(("tool_call_succeeded", "tool_call_failed", "step_succeeded"), "execution_time_ms"),
    ),
    "state_bytes": (
        None,
        {
            "state_updated": "state_json",
            "session_created": "snapshot.state_json",
            "snapshot_created": "snapshot.state_json",
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
    if column == "state_bytes":
        return lambda payload: len(get(payload).encode())
    return get


# By the class of a payload: the places of its figures among the columns, and what finds them.
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
