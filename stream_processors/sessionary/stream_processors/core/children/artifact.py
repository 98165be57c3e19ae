"""Artifacts: their transitions, the judgement of their events, and their rows.


    artifact_created
           │
           ▼
         open ──────▶ complete
           │             │
           └──────┬──────┘
                  ▼
            soft_deleted ──────▶ purged

Creating or completing an artifact again with the same content changes nothing: so a client may
repeat the event if it does not know whether it was sent.

A row describes an artifact and its place; the body is elsewhere. An artifact has no clock, and
vanishes with its run or session. Begin with `ARTIFACT_TRANSITIONS`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sessionary.schemas.codec import Event, encode_record, record_headers
from sessionary.schemas.events import (
    ArtifactChunkAppended,
    ArtifactCompleted,
    ArtifactCreated,
    ArtifactPurged,
    ArtifactSoftDeleted,
)
from sessionary.schemas.ids import artifact_key
from sessionary.schemas.records import ArtifactState, SessionState
from sessionary.schemas.types import ArtifactStateName
from sessionary.stream_processors.core.family import (
    ChildFamily,
    Judged,
    SessionArrival,
    UnclockedRows,
    object_to_row_size,
)
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.rows import RowKind

ARTIFACT_PAYLOADS: Final = (
    ArtifactCreated,
    ArtifactChunkAppended,
    ArtifactCompleted,
    ArtifactSoftDeleted,
    ArtifactPurged,
)
_HASH = re.compile("[0-9a-f]{64}")
# From the artifact and the payload to the objection, or None.
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

# Events that are possible in these states, and change nothing if their values are the same.
REPEATED: Final[Mapping[tuple[ArtifactStateName, str], ArtifactGuard]] = {
    ("open", "artifact_created"): _create_again,
    ("complete", "artifact_created"): _create_again,
    ("complete", "artifact_completed"): _complete_again,
}
BY_EVENT: Final[Mapping[tuple[ArtifactStateName | None, str], ArtifactTransition]] = {
    (source, transition.event_type): transition for transition in ARTIFACT_TRANSITIONS for source in transition.sources
}


def judge_artifact(session: SessionState, event: Event, arrival: SessionArrival) -> Judged | Objection:
    """Judge an event against `arrival.child`: row ─▶ pair of state and event ─▶ guard ─▶ size.

    The artifact belongs to the run that the envelope names, or to the session.
    """
    payload, artifact = event.payload, arrival.child
    assert isinstance(payload, ARTIFACT_PAYLOADS)
    assert artifact is None or isinstance(artifact, ArtifactState)
    name = event.envelope.event_type
    transition = BY_EVENT.get((None if artifact is None else artifact.state, name))
    if artifact is None:
        if transition is None:
            return Objection("unknown_artifact", f"{name} of artifact {payload.artifact_id}, which was not created")
        assert isinstance(payload, ArtifactCreated)
        after = _new_artifact(session, event, payload, transition.target, arrival.now_ms)
        return object_to_row_size("artifact", arrival.child_key or b"", after, arrival) or Judged(after)
    if transition is None:
        repeated = REPEATED.get((artifact.state, name))
        if repeated is not None:
            return repeated(artifact, payload) or Judged(None)
        return Objection("illegal_transition", f"{name} is not possible for an artifact in {artifact.state}")
    if objection := transition.guard(artifact, payload):
        return objection
    after = artifact._replace(state=transition.target)
    if transition.target != artifact.state:
        after = after._replace(entered_at=arrival.now_ms)
    if isinstance(payload, ArtifactChunkAppended):
        return Judged(after._replace(size_bytes=payload.offset + payload.length))
    if isinstance(payload, ArtifactCompleted):
        return Judged(after._replace(size_bytes=payload.size_bytes, sha256=payload.sha256))
    return Judged(after)


def _new_artifact(
    session: SessionState, event: Event, payload: ArtifactCreated, state: ArtifactStateName, now_ms: int
) -> ArtifactState:
    return ArtifactState(
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        run_id=event.envelope.run_id or None,
        step_id=event.envelope.step_id,
        artifact_id=payload.artifact_id,
        artifact_type=payload.artifact_type,
        uri=payload.uri,
        state=state,
        created_at=now_ms,
        entered_at=now_ms,
        size_bytes=0,
        sha256=None,
        file_name=payload.file_name,
        media_type=payload.media_type,
    )


def _key_of(event: Event, session: bytes, run: bytes, row: object) -> bytes | None:
    payload = event.payload
    assert isinstance(payload, ARTIFACT_PAYLOADS)
    return artifact_key(run or session, payload.artifact_id)


_KIND: Final = RowKind(
    ArtifactState, live=False, prefixes=record_headers(ArtifactState), encode=encode_record, is_child=True
)
ARTIFACTS: Final = ChildFamily(UnclockedRows("artifact", (_KIND,)), ARTIFACT_PAYLOADS, _key_of, judge_artifact)
