"""The results that agents share: as texts of events, or as artifacts if they are large.

Of a large one the event has the reference and the beginning:
{"artifact_ref": "artifact:agent_result:…", "summary": "16,385 characters: …"}.
"""

import json
from typing import TYPE_CHECKING, NamedTuple

from sessionary.producers.context.marks import Marks
from sessionary.producers.errors import Invalid, SettingsError
from sessionary.producers.ports import Json
from sessionary.producers.process.json_text import any_json_text
from sessionary.schemas.limits import RESULT_CHARACTERS_MAX

if TYPE_CHECKING:  # most clients have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary, Reporter

RESULT_TYPE = "agent_result"  # of artifacts that are nothing but a result
_SUMMARY_CHARACTERS = 200  # of the text's beginning


class StoredResult(NamedTuple):
    """What an event has of a result."""

    text: str | None
    artifact_id: str | None = None


def store_result(session: "Reporter", library: "ArtifactLibrary | None", result: Json, marks: Marks) -> StoredResult:
    """Return what an event has of a result; a large one is saved first.

    Raises `Invalid` if it cannot be written as JSON, or is large and there is no library.
    """
    if result is None:
        return StoredResult(None)
    text = any_json_text(result, "result")
    if len(text) <= RESULT_CHARACTERS_MAX:
        return StoredResult(text)
    if library is None:
        raise Invalid(
            "invalid_value",
            f"result has {len(text):,} characters, and agents share {RESULT_CHARACTERS_MAX:,}: set "
            "SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), so that larger ones become artifacts",
        )
    artifact = library.save(session, text, RESULT_TYPE, **marks)
    summary = f"{len(text):,} characters: {text[:_SUMMARY_CHARACTERS]}"
    reference = any_json_text({"artifact_ref": f"{artifact.reference}", "summary": summary}, "result")
    return StoredResult(reference, artifact.artifact_id)


def load_result(text: str | None, artifact_id: str | None, library: "ArtifactLibrary | None") -> Json:
    """Return a result that was shared; a text that is no JSON as it is.

    Raises `SettingsError` if an artifact has it and there is no library; otherwise as
    `ArtifactLibrary.load` does.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text
    reference = value.get("artifact_ref") if artifact_id is not None and isinstance(value, dict) else None
    if not isinstance(reference, str) or not reference.startswith(f"artifact:{RESULT_TYPE}:"):
        return value
    if library is None:
        raise SettingsError(
            f"the result is {reference}: set SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), to the place "
            "where it was saved, or pass load_artifacts=False"
        )
    return json.loads(library.load(reference))
