"""Values that are too large for events: an event has a reference of them, a library their JSON."""

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.errors import ResultTooLarge
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.errors import Invalid, SettingsError, Unavailable
from sessionary.producers.ports import Json, OnError
from sessionary.producers.process.safe_text import JSON_BYTES_MAX, any_json_text
from sessionary.producers.verdicts.begun_work import VALUE_TYPES
from sessionary.schemas.events import Payload

if TYPE_CHECKING:  # most clients have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary, Reporter

VALUE_BYTES_MAX = 256 << 10
"""The JSON of a value of more bytes is an artifact, if the client has a library."""

# The `VALUE_TYPES`: only a stored value is such an artifact, and no other reference is resolved.
TOOL_ARGUMENTS, TOOL_RESULT = "tool_arguments", "tool_result"
STEP_INPUT, STEP_OUTPUT, RUN_RESULT = "step_input", "step_output", "run_result"
CHECKPOINT_DATA = "checkpoint_data"
INTERMEDIATE = "intermediate."
"""The type of an artifact that is an intermediate result of a task begins so; its name follows."""
_SUMMARY_CHARACTERS = 200  # of the JSON's beginning, for people


class StoredText(NamedTuple):
    """A value as an event has it: its JSON, or a reference of the artifact that has it."""

    text: str | None
    artifact_id: str | None = None


class ValueKeeper(NamedTuple):
    """Keeps values that are too large for the events of one session.

    Attributes:
        library: Stores the values; None: such values are refused.
        reporter: Sends the events of its artifacts.
        on_error: Gets the error of a store that took nothing, if an event can hold the value.
    """

    library: "ArtifactLibrary | None"
    reporter: "Reporter"
    on_error: OnError


class _Sender:
    """Sends an artifact's events as the recorder sends those of its work."""

    def __init__(self, recorder: Recorder, fields: EnvelopeFields) -> None:
        self._recorder, self._fields = recorder, fields

    def emit(self, payload: Payload, **metadata: Any) -> str:
        return self._recorder.send(payload, self._fields).event_id


def store_value(recorder: Recorder, value: Json, what: str, artifact_type: str, fields: EnvelopeFields) -> StoredText:
    """Return `value` as an event of recorded work has it; blocks and raises as `keep_value`."""
    keeper = ValueKeeper(recorder.artifacts, _Sender(recorder, fields), recorder.on_error)
    return keep_value(keeper, value, what, artifact_type)


def keep_value(keeper: ValueKeeper, value: Json, what: str, artifact_type: str) -> StoredText:
    """Return `value` as an event has it; blocks while a large one is saved.

    `what` names it in errors.

    Raises:
        Invalid: JSON cannot hold the value.
        ResultTooLarge: The value fits into no event, and the client has no library that takes it.
    """
    text = any_json_text(value, what)
    size = len(text.encode())
    if size <= VALUE_BYTES_MAX or (keeper.library is None and size <= JSON_BYTES_MAX):
        return StoredText(text)
    if keeper.library is None:
        raise ResultTooLarge(what, size, value)
    try:
        artifact = keeper.library.save(keeper.reporter, text, artifact_type)
    except Unavailable as error:
        if size > JSON_BYTES_MAX:
            raise ResultTooLarge(what, size, value, f"the library does not take it: {error}") from error
        keeper.on_error(error)
        return StoredText(text)
    reference = {"artifact_ref": f"{artifact.reference}", "summary": _summary_of(value, text, size)}
    return StoredText(any_json_text(reference, what), artifact.artifact_id)


def load_value(library: "ArtifactLibrary | None", text: str | None) -> Json:
    """Return the value of an event's JSON; None for None. Blocks while a large value is loaded.

    Raises:
        SettingsError: The value is an artifact, and the client has no library.
        ArtifactMissing: The library has no such body; `ArtifactDeleted` if it has expired.
        ArtifactDamaged: The body does not have its hash.
        Invalid: The value was not kept, as it was too large and no library was set.
        Unavailable: The store does not answer.
    """
    if text is None:
        return None
    value = json.loads(text)
    reference = reference_in(value)
    if reference is None:
        return value
    if not reference:
        raise Invalid("invalid_value", f"the stored value was not kept: {value['summary']}")
    if library is None:
        raise SettingsError(
            f"the stored value is {reference}: set SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), to the "
            "place where it was saved"
        )
    return json.loads(library.load(reference))


def lost_text(error: ResultTooLarge, artifact_type: str) -> str:
    """Return a stand-in for a value of a type that could not be kept."""
    return any_json_text({"artifact_ref": f"artifact:{artifact_type}:", "summary": error.detail}, "value")


def is_stored_text(stored: str, text: str) -> bool:
    """Return whether an event's JSON, or the artifact that it refers to, is `text`.

    What was not kept is any text.
    """
    reference = reference_in(json.loads(stored))
    if not reference:
        return reference is not None or stored == text
    return reference.rpartition(":")[2] == hashlib.sha256(text.encode()).hexdigest()


def reference_in(value: Json) -> str | None:
    """Return the reference that a stored value is, '' for one that was not kept; None for others.

    A reference that the program itself stored has a separate type, and is not resolved.
    """
    if not isinstance(value, dict) or value.keys() != {"artifact_ref", "summary"}:
        return None
    scheme, _, rest = f"{value['artifact_ref']}".partition(":")
    artifact_type, _, sha256 = rest.rpartition(":")
    if scheme != "artifact" or artifact_type not in VALUE_TYPES:
        return None
    return value["artifact_ref"] if sha256 else ""


def _summary_of(value: Json, text: str, size: int) -> str:
    counted = f", {len(value):,} items" if isinstance(value, dict | list | tuple) else ""
    return f"{type(value).__name__}{counted}, {size:,} bytes of JSON: {text[:_SUMMARY_CHARACTERS]}"
