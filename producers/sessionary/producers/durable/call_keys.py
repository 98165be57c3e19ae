"""Idempotency keys of tool calls: the same action has the same key, on every attempt. Pure."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.schemas.limits import NAME_CHARACTERS_MAX

_INTEGER_MAX = 2**53 - 1  # the numbers of JSON are doubles: a larger whole number has no distinct form
_PLAIN_EXPONENTS = range(-6, 21)  # exponents of numbers that ECMAScript writes without one


def canonical_text(value: Any) -> str:
    """Return `value` in its canonical form.

    Takes what `json.dumps` takes, with texts as keys. Raises `Invalid` for anything else: an
    infinite number, a whole number beyond 2**53 - 1, a text with a lone surrogate.
    """
    try:
        parts: list[str] = []
        _add_value(value, parts)
        text = "".join(parts)
        text.encode()
    except RecursionError:
        raise Invalid("invalid_value", "the value has no canonical JSON: it is nested too deeply") from None
    except UnicodeEncodeError:
        raise _no_form("a text with a lone surrogate") from None
    return text


def _add_value(value: Any, parts: list[str]) -> None:
    if value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        parts.append(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, int):
        if abs(value) > _INTEGER_MAX:
            raise _no_form(f"the whole number {value}, which is beyond 2**53 - 1: write it as a text")
        parts.append(int.__repr__(value))
    elif isinstance(value, float):
        parts.append(_number_text(value))
    elif isinstance(value, list | tuple):
        _add_items(value, parts)
    elif isinstance(value, dict):
        _add_members(value, parts)
    else:
        raise _no_form(f"a value of type {type(value).__name__}")


def _add_items(items: "list[Any] | tuple[Any, ...]", parts: list[str]) -> None:
    separator = "["
    for item in items:
        parts.append(separator)
        _add_value(item, parts)
        separator = ","
    parts.append("]" if items else "[]")


def _add_members(members: dict[Any, Any], parts: list[str]) -> None:
    for key in members:
        if not isinstance(key, str):
            raise _no_form(f"the key {key!r} of type {type(key).__name__}")
    separator = "{"
    for key in sorted(members, key=_utf16_units):
        parts += (separator, json.dumps(key, ensure_ascii=False), ":")
        _add_value(members[key], parts)
        separator = ","
    parts.append("}" if members else "{}")


def _utf16_units(text: str) -> bytes:
    """Return the sort key of a text by UTF-16 units, as the RFC demands."""
    return text.encode("utf-16-be", "surrogatepass")


def _number_text(number: float) -> str:
    """Return a number as ECMAScript writes it: the shortest digits that read as the same number."""
    if not math.isfinite(number):
        raise _no_form(f"the number {number}")
    if number == 0:
        return "0"  # the negative zero too
    sign = "-" if number < 0 else ""
    # `repr` finds the same digits; only the way to write them is another one.
    mantissa, _, exponent_text = float.__repr__(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    shift = int(exponent_text or 0) - len(fraction)
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    exponent = len(digits) - 1 + shift  # of the first digit
    return sign + _digits_text(significant, exponent)


def _digits_text(digits: str, exponent: int) -> str:
    """Return a number of which the first of `digits` stands for 10**`exponent`."""
    if exponent not in _PLAIN_EXPONENTS:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{rest}e{exponent:+d}"
    if exponent < 0:
        return f"0.{'0' * (-exponent - 1)}{digits}"
    if len(digits) <= exponent + 1:
        return digits.ljust(exponent + 1, "0")
    return f"{digits[: exponent + 1]}.{digits[exponent + 1 :]}"


def _no_form(what: str) -> Invalid:
    return Invalid("invalid_value", f"{what} has no canonical JSON (RFC 8785)")


# Idempotency keys of tool calls: the same action has the same key, on every attempt. Pure.


def idempotency_key(
    tenant_id: str,
    run_id: str | None,
    step_name: str | None,
    tool_name: str,
    arguments: Mapping[str, Json],
    turn: int = 0,
) -> str:
    """Return the key of a tool call: SHA-256, as 64 hex digits, over canonical JSON (RFC 8785).

    Neither the attempt nor the epoch is a part of it, so that a repeated call has the same key.

    Args:
        tenant_id: The tenant.
        run_id: The run that the call belongs to; None outside of runs.
        step_name: The step that the call belongs to; None outside of steps.
        tool_name: The tool.
        arguments: The tool's arguments, by name.
        turn: Number of the turn that the call belongs to; 0 outside of turns, and in steps.

    Raises:
        Invalid: JSON cannot hold the arguments, or not exactly.
    """
    parts = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "step_name": step_name,
        "tool_name": tool_name,
        "args": dict(arguments),
        **({"turn": turn} if turn else {}),
    }
    return hashlib.sha256(canonical_text(parts).encode()).hexdigest()


def numbered_key(key: str, number: int) -> str:
    """Return the key of the n-th of equal calls, from 1; the first has `key` itself."""
    return key if number == 1 else hashlib.sha256(f"{key} {number}".encode()).hexdigest()


def checked_text(text: str, what: str) -> str:
    """Return a text by which recorded work is found again.

    Raises `Invalid` if no event can hold it: an event would have U+FFFD for a lone surrogate, so
    the work would not be found, or that of another text would be.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(
            "invalid_value",
            f"{what} is {text!r:.80}, with a lone surrogate, which no event can hold: use another text, such as "
            "os.fsencode(name).hex() for the name of a file",
        ) from None
    return text


def checked_key(key: object, tool_name: str) -> str:
    """Return a key of the business. Raises `Invalid` if it is no text, empty or too long."""
    if isinstance(key, str) and 0 < len(key) <= NAME_CHARACTERS_MAX:
        return checked_text(key, f"the key of the tool {tool_name}")
    raise Invalid(
        "invalid_value",
        f"the key of the tool {tool_name} is {key!r:.80}: use a text of 1 to {NAME_CHARACTERS_MAX} characters",
    )
