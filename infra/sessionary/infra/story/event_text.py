"""The content of an event, in a few words; pure."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

Payload = Mapping[str, Any]  # as `payload_json` holds it
REMOVED: Final = "(content removed by retention)"


def event_name(event_type: str, payload: Payload) -> str:
    """Return a short name: an activity's kind, a call's own name, else the event's type."""
    if event_type in _NAME_FIELDS and (name := payload.get(_NAME_FIELDS[event_type])):
        return one_line(f"{name}")
    return _NAMES.get(event_type) or event_type.removeprefix("session_").replace("_", " ")


def event_text(event_type: str, payload: Payload | None) -> str:
    """Return the event's content for people, on one line; None: the content is gone."""
    if payload is None:
        return REMOVED
    write = _TEXTS.get(event_type, _other_text)
    return one_line(write(payload))


def one_line(text: str) -> str:
    """Return a text on one line, with a space for each character that cannot be printed."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def clock_text(at_us: int, *, date: bool = False) -> str:
    """Return a time of the day in UTC to the millisecond, with the date if asked."""
    at = datetime.fromtimestamp(at_us / 1e6, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S") + f".{at.microsecond // 1000:03}"


def format_bytes(count: int) -> str:
    """Return a number of bytes as people read it, such as `34 B` or `1.2 kB`."""
    if count < 1_000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1_000_000 else f"{count / 1e6:.1f} MB"


def format_usd(nanos: int) -> str:
    """Return billionths of a US dollar as dollars, such as `$0.0054`."""
    digits = f"{nanos / 1e9:.9f}".rstrip("0")
    whole, _, cents = digits.partition(".")
    return f"${whole}.{cents.ljust(2, '0')}"


def format_duration(seconds: float) -> str:
    """Return a duration as people read it, such as `350 ms`, `1.5 s`, `2 min 5 s`, `1 h 3 min`."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _created_text(payload: Payload) -> str:
    limits = payload.get("limits") or {}
    parts = [f"id {payload['external_id']}"] if payload.get("external_id") else []
    parts += [f"{name} {value}" for name, value in limits.items() if value not in (None, False)]
    snapshot = payload.get("snapshot") or {}
    if snapshot.get("state_json"):
        parts.append(f"state of {format_bytes(len(snapshot['state_json'].encode()))}")
    if payload.get("parent_session_id"):
        parts.append(f"child of {payload['parent_session_id']}")
    return ", ".join(parts)


def _usage_text(payload: Payload) -> str:
    parts = [f"{payload['model']}"] if payload.get("model") else []
    tokens_in, tokens_out = payload.get("tokens_in", 0), payload.get("tokens_out", 0)
    cached, reasoning = payload.get("cache_read_input_tokens"), payload.get("reasoning_output_tokens")
    if tokens_in or tokens_out:
        parts.append(f"{tokens_in:,} tokens in" + (f" ({cached:,} cached)" if cached else ""))
        parts.append(f"{tokens_out:,} out" + (f" ({reasoning:,} reasoning)" if reasoning else ""))
    cost = payload.get("model_cost_usd_nanos", 0) + payload.get("tool_cost_usd_nanos", 0)
    if cost:
        parts.append(format_usd(cost))
    if payload.get("is_timeout_retry"):
        parts.append("repeats a call that timed out")
    if (first_ms := payload.get("time_to_first_token_ms")) is not None:
        parts.append(f"first token after {first_ms / 1_000:g} s")
    if retries := payload.get("retries"):
        parts.append(f"{retries} retries")
    if payload.get("response_id"):
        parts.append(f"response {payload['response_id']}")
    return ", ".join(parts)


def _state_text(payload: Payload) -> str:
    text = f"{payload.get('state_json') or ''}"
    return f"version {payload.get('new_version')}, {format_bytes(len(text.encode()))}: {text}"


def _progress_text(payload: Payload) -> str:
    done, total, message = payload.get("progress", 0.0), payload.get("total"), payload.get("message")
    share = f"{done:g} of {total:g}" if total else f"{done:g}"
    return f"{share}: {message}" if message else share


def _error_text(payload: Payload) -> str:
    error = payload.get("error") or {}
    return f"{error.get('error_class')}: {error.get('message') or error.get('code')}"


def _call_text(payload: Payload) -> str:
    if payload.get("error"):
        return f"failed, {_error_text(payload)}"
    given = payload.get("args_json") or payload.get("input_json") or ""
    return "" if given == "{}" else f"{given}"


def _released_text(payload: Payload) -> str:
    actions = payload.get("actions") or []
    failed = [f"{one.get('action')}" for one in actions if not one.get("done")]
    return f"{len(actions) - len(failed)} of {len(actions)} actions done" + (
        f", not: {', '.join(failed)}" if failed else ""
    )


def _words(*names: str) -> Callable[[Payload], str]:
    return lambda payload: ": ".join(f"{payload[name]}" for name in names if payload.get(name) not in (None, ""))


def _other_text(payload: Payload) -> str:
    return ", ".join(f"{name} {value}" for name, value in payload.items() if isinstance(value, str | int | float))


_NAME_FIELDS: Final[Mapping[str, str]] = {
    "session_activity": "kind",
    **dict.fromkeys(("step_started", "step_succeeded", "step_failed", "step_skipped"), "name"),
    **dict.fromkeys(
        ("tool_call_started", "tool_call_succeeded", "tool_call_failed", "tool_call_unknown", "tool_call_resolved"),
        "tool_name",
    ),
}
_NAMES: Final = {
    "usage_recorded": "usage",
    "state_updated": "state",
    "progress_reported": "progress",
    "resources_released": "released",
    "session_phase_changed": "phase",
}
_TEXTS: Final[Mapping[str, Callable[[Payload], str]]] = {
    "session_created": _created_text,
    "session_started": lambda _: "",
    "session_start_failed": _words("reason", "message"),
    "session_activity": _words("text"),
    "session_paused": _words("kind", "reason"),
    "session_resumed": _words("resume_plan", "message"),
    "session_recovered": _words("resume_plan"),
    "session_errored": _error_text,
    "session_terminated": _words("reason", "message"),
    "session_phase_changed": _words("phase"),
    "state_updated": _state_text,
    "usage_recorded": _usage_text,
    "progress_reported": _progress_text,
    "resources_released": _released_text,
    "message_appended": _words("role", "content"),
    "tool_call_started": _call_text,
    "tool_call_succeeded": lambda _: "succeeded",
    "tool_call_failed": _call_text,
    "tool_call_unknown": lambda _: "outcome unknown",
    "step_started": _call_text,
    "step_succeeded": lambda _: "succeeded",
    "step_failed": _call_text,
}
