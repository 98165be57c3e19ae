"""What `traced(capture=True)` keeps of a call: its arguments and its result, as JSON."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sessionary.producers.context.callables import CallArguments
from sessionary.producers.context.reported_block import Output
from sessionary.producers.context.scope import AnyCore
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.errors import Invalid
from sessionary.producers.process.safe_text import any_json_text, json_value, type_name

KEPT_BYTES: Final = 256 << 10  # of the JSON of what a generator yields, and of arguments that are not cut
CUT_CHARACTERS: Final = 16 << 10  # of the JSON of a value that nothing can hold whole
CUT_MARK: Final = "…"


class Capture:
    """Keeps the values of a function's calls."""

    def __init__(self, function: Callable[..., Any], label: str, omit: str | Iterable[str], *, is_tool: bool) -> None:
        """Take what is left out. Raises `Invalid` for a name that the function does not take."""
        self.label = label
        self.types = ("tool_arguments", "tool_result") if is_tool else ("step_input", "step_output")
        names = (omit,) if isinstance(omit, str) else tuple(omit) if isinstance(omit, Iterable) else (omit,)
        if not all(isinstance(name, str) for name in names):
            raise Invalid("invalid_value", f"omit is {omit!r:.80}: use the name of an argument, or several")
        self._omit = frozenset(names)
        try:
            self._arguments: CallArguments | None = CallArguments(function)
        except (TypeError, ValueError):  # some functions in C have no signature
            self._arguments = None
            return
        if unknown := sorted(name for name in self._omit if not self._arguments.takes(name)):
            raise Invalid(
                "invalid_value",
                f"omit names {', '.join(map(repr, unknown))}, which {label} does not take: its arguments are "
                f"{', '.join(self._arguments.names)}",
            )

    def of_call(self, core: AnyCore, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "CapturedCall":
        """Return what keeps the values of one call in the session of `core`."""
        return CapturedCall(self, core, args, kwargs)

    def name_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, without those that are left out. Raises `TypeError`."""
        if self._arguments is not None:
            return self._arguments.bind(args, kwargs, self._omit)
        # Which of the arguments by position are to be left out is unknown.
        named = {name: value for name, value in kwargs.items() if name not in self._omit}
        return named if self._omit else {"args": list(args), **named}


class CapturedCall:
    """Keeps the values of one call. Its methods block while a large value is saved."""

    def __init__(self, capture: Capture, core: AnyCore, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._capture, self._core, self._args, self._kwargs = capture, core, args, kwargs
        self._items: list[str] | None = None  # as JSON: what is yielded may change later
        self._size = self._more = 0

    @property
    def may_wait(self) -> bool:
        """Whether a value may have to be saved."""
        return self._core.recorder().artifacts is not None

    def given(self) -> dict[str, Any] | None:
        """Return the arguments as JSON can hold them; None if they do not fit the function."""
        try:
            given = self._capture.name_arguments(self._args, self._kwargs)
        except TypeError:
            return None  # the call itself raises it
        return {name: json_value(value) for name, value in given.items()}

    def input_text(self, fields: EnvelopeFields) -> str | None:
        """Return the arguments as an event has them; None if they do not fit the function."""
        try:
            given = self._capture.name_arguments(self._args, self._kwargs)
        except TypeError:
            return None  # the call itself raises it
        self._args, self._kwargs = (), {}  # not kept alive for as long as the call lasts
        held = {name: json_value(value) for name, value in given.items()}
        what = f"the arguments of {self._capture.label}"
        return _store(self._core, held, what, self._capture.types[0], fields, lambda: cut_arguments(given, held))[0]

    def output_of(self, result: Any, fields: EnvelopeFields) -> Output:
        """Return the result as an event has it, or what was yielded."""
        if self._items is not None:
            mark = [any_json_text(f"{CUT_MARK} {self._more:,} more", "mark")] if self._more else []
            return f"[{','.join([*self._items, *mark])}]", None
        held = json_value(result)
        what = f"the result of {self._capture.label}"
        return _store(self._core, held, what, self._capture.types[1], fields, lambda: cut_value(result, held))

    def begin_items(self) -> None:
        """Let what is yielded be the call's result."""
        self._items = []

    def add_item(self, item: object) -> None:
        """Keep what a generator yields, unless it is more than 256 KiB in all; then count it."""
        if self._items is not None and not self._more:
            text = any_json_text(json_value(item), "item")
            self._size += len(text.encode())
            if self._size <= KEPT_BYTES:
                self._items.append(text)
                return
        self._more += 1


def cut_arguments(given: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that nothing can hold whole: the large ones among them are cut.

    `held`: the arguments as JSON can hold them.
    """
    share = max(len(given), 1)
    sizes = {name: len(any_json_text(value, name).encode()) for name, value in held.items()}
    return {
        name: value if sizes[name] <= KEPT_BYTES // share else cut_value(given[name], value, share)
        for name, value in held.items()
    }


def is_cut(value: object) -> bool:
    """Return whether a value of an event's JSON is what `cut_value` returns."""
    return isinstance(value, dict) and value.keys() == {"text", "type", "bytes"}


def cut_value(value: object, held: Any, share: int = 1) -> dict[str, object]:
    """Return the beginning of a value's JSON with a mark, its type and its size in bytes.

    `held`: the value as JSON can hold it. `share`: how many values share the room.
    """
    text = any_json_text(held, "value")
    cut = f"{text[: CUT_CHARACTERS // share]}{CUT_MARK}"
    return {"text": cut, "type": type_name(value), "bytes": len(text.encode())}


def _store(
    core: AnyCore, held: Any, what: str, artifact_type: str, fields: EnvelopeFields, cut: Callable[[], object]
) -> Output:
    """Return a value as an event has it: whole, as the reference of an artifact, or cut."""
    try:
        return core.keep_value(held, what, artifact_type, fields)
    except Exception as error:  # noqa: BLE001 - of the store, or no room for an artifact: its beginning is kept
        recorder = core.recorder()
        if recorder.artifacts is not None:
            recorder.on_error(error)
    return any_json_text(cut(), what), None
