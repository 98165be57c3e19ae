"""Which value of an event exceeds its bound; checks are compiled from the schemas; pure.

The bounds are those of `sessionary.schemas.limits`. A check is a straight line of comparisons,
because every event passes it: 0.3 to 1 µs. A native build has the same checks in C; they give up at
values of other types, and the Python check then reports the fault.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from sessionary.schemas import types
from sessionary.schemas.codec.catalogue import EVENTS_NAMESPACE, Json, current_schemas, schema_fingerprint
from sessionary.schemas.codec.codegen import CodeBuilder
from sessionary.schemas.codec.compiled_helpers import WRITER_GAVE_UP, Kind, find_function
from sessionary.schemas.codec.formats import Event
from sessionary.schemas.events import LlmDecision
from sessionary.schemas.limits import ITEMS_MAX, NUMBER_MAX, UNBOUNDED_NUMBERS, characters_max
from sessionary.schemas.types import Envelope

# Returns the fault, or '' if every value is within its bound.
Check = Callable[[Any], str]

OWN_CHECKS = frozenset({"envelope", "limits"})  # fields of events that are checked elsewhere
ENVELOPE_NUMBERS = ("schema_version", "run_seq", "context_bytes")  # the judge checks the others
_ENVELOPE_OF = f"{EVENTS_NAMESPACE}.SessionCreated"  # every event has the same


def describe_long_text(path: str, text: str, most: int) -> str:
    """Return the fault of a text; `path` leads to the text, `most` is its bound."""
    return f"{path} has {len(text)} characters, more than {most}"


def describe_long_list(path: str, items: Any) -> str:
    """Return the fault of a list or a map."""
    return f"{path} has {len(items)} items, more than {ITEMS_MAX}"


def describe_bad_number(path: str, number: float) -> str:
    """Return the fault of a number."""
    if isinstance(number, float):
        return f"{path} is {number}, not a finite number"
    return f"{path} is {number}; it must be from 0 to {NUMBER_MAX}"


class _CheckBuilder(CodeBuilder):
    """The text of one check: `r` is the record."""

    def __init__(self) -> None:
        helpers = {"_text": describe_long_text, "_list": describe_long_list, "_number": describe_bad_number}
        helpers["_is_finite"] = math.isfinite
        super().__init__(["def check(r):"], helpers)

    def check_fields(self, cls: type[Any], schema: Mapping[str, Json], indent: int, record: str, path: str) -> None:
        """Add the checks of the fields of an instance of `cls`; `path` leads to it."""
        names = {name: self.new_name() for name in cls._fields}
        self.add_lines(indent, f"({''.join(f'{name}, ' for name in names.values())}) = {record}")
        for field in schema["fields"]:
            name = field["name"]
            if name not in OWN_CHECKS:
                self.check_value(field["type"], indent, names[name], cls.__name__, name, f"{path}{name}")

    def check_value(self, schema: Json, indent: int, operand: str, owner: str, field: str, path: str) -> None:
        """Add the check of the value in the name `operand`.

        `owner` and `field` are the class and the field that have it, `path` is for people.
        """
        match schema:
            case ["null", branch]:
                self.add_lines(indent, f"if {operand} is not None:", "    pass")
                self.check_value(branch, indent + 1, operand, owner, field, path)
            case "string":
                if (most := characters_max(owner, field)) is not None:
                    self.add_lines(indent, f"if len({operand}) > {most}: return _text({path!r}, {operand}, {most})")
            case "int" | "long":
                if field not in UNBOUNDED_NUMBERS:
                    outside = f"not 0 <= {operand} <= {NUMBER_MAX}"
                    self.add_lines(indent, f"if {outside}: return _number({path!r}, {operand})")
            case "double":
                self.add_lines(indent, f"if not _is_finite({operand}): return _number({path!r}, {operand})")
            case {"type": "record", "name": name}:
                self.check_fields(getattr(types, name.rpartition(".")[2]), schema, indent, operand, f"{path}.")
            case {"type": "array", "items": items}:
                item = self._open_items(indent, operand, operand, path)
                self.check_value(items, indent + 1, item, owner, field, f"{path}[]")
            case {"type": "map", "values": values}:
                key = self._open_items(indent, operand, operand, path)
                self.check_value("string", indent + 1, key, owner, field, f"{path}[]")
                self.check_value(values, indent + 1, f"{operand}[{key}]", owner, field, f"{path}[]")
            case {"type": "int" | "long" as inner}:
                self.check_value(inner, indent, operand, owner, field, path)

    def _open_items(self, indent: int, operand: str, items: str, path: str) -> str:
        """Add the loop over items, and return the name of the item."""
        item = self.new_name()
        self.add_lines(indent, f"if len({operand}) > {ITEMS_MAX}: return _list({path!r}, {operand})")
        self.add_lines(indent, f"for {item} in {items}:", "    pass")
        return item


class _EventChecks(dict[type[Any], Check]):
    """Checks of pairs of envelope and payload, by the payload's class; made when first needed."""

    def __missing__(self, cls: type[Any]) -> Check:
        """Compile the check of the payload's values and the envelope's numbers."""
        builder, name = _CheckBuilder(), f"{EVENTS_NAMESPACE}.{cls.__name__}"
        schema = current_schemas()[name]
        builder.add_lines(1, "e, r = r")
        for field in envelope_fields():
            if field["name"] in ENVELOPE_NUMBERS:
                builder.add_lines(1, f"n = e[{Envelope._fields.index(field['name'])}]")
                builder.check_value(field["type"], 1, "n", "Envelope", field["name"], field["name"])
        builder.check_fields(cls, schema, 1, "r", "")
        builder.add_lines(1, "return ''")
        check = _fastest_check("check", name, builder.compile_function("check"))
        if cls is LlmDecision:
            check = _checked_decision(check)
        self[cls] = check
        return check


def _checked_decision(check: Check) -> Check:
    """Return the check of a decision, which is one among candidates or of tools."""

    def check_decision(event: Any) -> str:
        _, decision = event  # it may be a plain pair
        if not decision.candidates and not decision.chosen_tools:
            return "a decision names neither candidates nor chosen_tools: a model's text is a message, message_appended"
        return check(event)

    return check_decision


def _fastest_check(kind: Kind, full_name: str, check: Check) -> Check:
    """Return the check of a native build, which lets `check` decide if it gives up; else `check`.

    `full_name`: of the event from whose schema the check was made.
    """
    compiled: Check | None = find_function(kind, full_name, schema_fingerprint(current_schemas()[full_name]))
    if compiled is None:
        return check

    def check_fast(value: Any) -> str:
        try:
            return compiled(value)
        except WRITER_GAVE_UP:
            return check(value)

    return check_fast


@cache
def _envelope_check() -> Check:
    """Compile the check of an envelope's texts and lists."""
    builder = _CheckBuilder()
    texts = [field for field in envelope_fields() if not is_number(field["type"])]
    builder.check_fields(Envelope, {"fields": texts}, 1, "r", "")
    builder.add_lines(1, "return ''")
    return _fastest_check("check_envelope", _ENVELOPE_OF, builder.compile_function("check"))


def envelope_fields() -> list[Json]:
    """Return the fields of the envelope, which is the first field of every event."""
    fields: list[Json] = current_schemas()[_ENVELOPE_OF]["fields"][0]["type"]["fields"]
    return fields


_EVENT_CHECKS = _EventChecks()


def is_number(schema: Json) -> bool:
    """Return whether a field is a number, or one that may be missing."""
    branch = schema[1] if isinstance(schema, list) else schema
    return (branch["type"] if isinstance(branch, dict) else branch) in ("int", "long")


def find_long_text(envelope: Envelope) -> str:
    """Return which text or list of an envelope is too long, for people; '' if none is.

    Names the field, its length and the bound, never the value.
    """
    return _envelope_check()(envelope)


def event_check(cls: type[Any]) -> Check:
    """Return `find_invalid_value` for events of one payload's class."""
    return _EVENT_CHECKS[cls]


def find_invalid_value(event: Event) -> str:
    """Return which value of a payload, or which number of its envelope, is out of bounds, or ''.

    Names the field and the bound, of a text its length, never the text.
    """
    cls = type(event.payload)
    # By `get`: the index of a class below `dict` is looked up as a method by each use.
    return (_EVENT_CHECKS.get(cls) or _EVENT_CHECKS[cls])(event)
