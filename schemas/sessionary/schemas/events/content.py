"""Events of content: conversation, snapshots and checkpoints, artifacts."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.types import Candidate, CheckpointKind, Snapshot


class LlmDecision(NamedTuple):
    """What a model chose, and from which options."""

    model: str | None = None
    chosen_tools: Sequence[str] = ()
    inputs_json: str | None = None
    candidates: Sequence[Candidate] = ()
    threshold: float | None = None
    choice: str | None = None
    output_text: str | None = None


class MessageAppended(NamedTuple):
    """A message of the conversation."""

    role: str
    content: str | None = None
    artifact_id: str | None = None
    name: str | None = None


class SnapshotCreated(NamedTuple):
    """A new snapshot, which becomes the last of the session's chain."""

    snapshot: Snapshot


class CheckpointSaved(NamedTuple):
    """Progress of a long operation, from which it can be continued.

    `kind`: what the run has reached, if it is one of the usual points.
    """

    checkpoint_id: str
    operation: str
    stage: str | None = None
    processed_count: int | None = None
    last_item_id: str | None = None
    bytes_written: int | None = None
    data_json: str | None = None
    kind: CheckpointKind | None = None


class ArtifactCreated(NamedTuple):
    """An artifact is opened."""

    artifact_id: str
    artifact_type: str
    uri: str


class ArtifactChunkAppended(NamedTuple):
    """Bytes were appended to an artifact at an offset."""

    artifact_id: str
    offset: int
    length: int
    sha256: str | None = None


class ArtifactCompleted(NamedTuple):
    """An artifact is complete."""

    artifact_id: str
    size_bytes: int
    sha256: str


class ArtifactSoftDeleted(NamedTuple):
    """An artifact is marked as deleted; its body is removed a week later."""

    artifact_id: str
    reason: str | None = None


class ArtifactPurged(NamedTuple):
    """An artifact's body is removed; its hash and metadata stay."""

    artifact_id: str
