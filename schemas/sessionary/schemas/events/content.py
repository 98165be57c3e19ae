"""Conversation, state history, artifact and prompt families."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.types import Candidate, Snapshot


class LlmDecision(NamedTuple):
    """What a model chose, and from what."""

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
    """S04: the chain's head moves."""

    snapshot: Snapshot


class CheckpointSaved(NamedTuple):
    """S04: progress of a long operation."""

    checkpoint_id: str
    operation: str
    stage: str | None = None
    processed_count: int | None = None
    last_item_id: str | None = None
    bytes_written: int | None = None
    data_json: str | None = None


class ReplayPerformed(NamedTuple):
    """A replay and whether it agreed."""

    from_snapshot_id: str | None
    to_snapshot_id: str | None
    source_hash: str
    replay_hash: str
    equal: bool


class ArtifactCreated(NamedTuple):
    """An artifact is opened."""

    artifact_id: str
    artifact_type: str
    uri: str


class ArtifactChunkAppended(NamedTuple):
    """Bytes were appended at an offset."""

    artifact_id: str
    offset: int
    length: int
    sha256: str | None = None


class ArtifactCompleted(NamedTuple):
    """An artifact is whole."""

    artifact_id: str
    size_bytes: int
    sha256: str


class ArtifactSoftDeleted(NamedTuple):
    """Marked; the body goes a week later."""

    artifact_id: str
    reason: str | None = None


class ArtifactPurged(NamedTuple):
    """The body is gone; hash and metadata stay."""

    artifact_id: str


class PromptVersionCreated(NamedTuple):
    """A new version of a prompt."""

    prompt_name: str
    version: str
    parent_version: str | None = None
    feedback: str | None = None
    text: str | None = None


class PromptMetricsRecorded(NamedTuple):
    """How a version fared."""

    prompt_name: str
    version: str
    success_rate: float
    avg_tokens: float
    satisfaction: float | None = None
