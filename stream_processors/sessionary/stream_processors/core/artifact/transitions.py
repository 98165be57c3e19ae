"""The machine of artifacts as data: one value for each transition.

    artifact_created
           │
           ▼
         open ──────▶ complete
           │             │
           └──────┬──────┘
                  ▼
            soft_deleted ──────▶ purged

That an artifact is created or completed once more with the same content changes nothing: so a
client may say it again if it does not know whether it did.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sessionary.schemas.events import ArtifactChunkAppended, ArtifactCompleted, ArtifactCreated
from sessionary.schemas.records import ArtifactState
from sessionary.schemas.types import ArtifactStateName
from sessionary.stream_processors.core.machine import Objection

_HASH = re.compile("[0-9a-f]{64}")
# The artifact, the payload; what is wrong, or None.
ArtifactGuard = Callable[[ArtifactState, Any], Objection | None]


class ArtifactTransition(NamedTuple):
    """One transition of an artifact. A source of None is an artifact without a row."""

    id: str
    sources: tuple[ArtifactStateName | None, ...]
    event_type: str
    target: ArtifactStateName
    guard: ArtifactGuard = lambda artifact, payload: None


def _append(artifact: ArtifactState, payload: ArtifactChunkAppended) -> Objection | None:
    if payload.offset > artifact.size_bytes:
        detail = f"the chunk begins at {payload.offset}, but the artifact has {artifact.size_bytes} bytes"
        return Objection("invalid_value", detail)
    return None


def _complete(artifact: ArtifactState, payload: ArtifactCompleted) -> Objection | None:
    if _HASH.fullmatch(payload.sha256) is None:
        return Objection("invalid_value", "sha256 has 64 digits: 0 to 9, a to f")
    if artifact.size_bytes and payload.size_bytes != artifact.size_bytes:
        detail = f"size_bytes is {payload.size_bytes}, but the chunks have {artifact.size_bytes} bytes"
        return Objection("invalid_value", detail)
    return None


def _create_again(artifact: ArtifactState, payload: ArtifactCreated) -> Objection | None:
    if (payload.artifact_type, payload.uri) == (artifact.artifact_type, artifact.uri):
        return None
    return Objection("invalid_value", f"the artifact is of type {artifact.artifact_type}, at {artifact.uri}")


def _complete_again(artifact: ArtifactState, payload: ArtifactCompleted) -> Objection | None:
    if (payload.size_bytes, payload.sha256) == (artifact.size_bytes, artifact.sha256):
        return None
    return Objection("invalid_value", "the artifact was completed with another size or hash")


ARTIFACT_TRANSITIONS: tuple[ArtifactTransition, ...] = (
    ArtifactTransition("A01", (None,), "artifact_created", "open"),
    ArtifactTransition("A02", ("open",), "artifact_chunk_appended", "open", _append),
    ArtifactTransition("A03", ("open",), "artifact_completed", "complete", _complete),
    ArtifactTransition("A04", ("open", "complete"), "artifact_soft_deleted", "soft_deleted"),
    ArtifactTransition("A05", ("soft_deleted",), "artifact_purged", "purged"),
)

# Events that are possible in these states, and change nothing if they say the same as before.
REPEATED: Final[Mapping[tuple[ArtifactStateName, str], ArtifactGuard]] = {
    ("open", "artifact_created"): _create_again,
    ("complete", "artifact_created"): _create_again,
    ("complete", "artifact_completed"): _complete_again,
}
BY_EVENT: Final[Mapping[tuple[ArtifactStateName | None, str], ArtifactTransition]] = {
    (source, transition.event_type): transition for transition in ARTIFACT_TRANSITIONS for source in transition.sources
}
