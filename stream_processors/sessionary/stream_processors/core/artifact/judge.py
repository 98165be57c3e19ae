"""How an event is judged against the artifact that it names; its session and run are for it.

row ─▶ pair of state and event ─▶ guard ─▶ size
"""

from sessionary.schemas.codec import Event
from sessionary.schemas.events import ArtifactChunkAppended, ArtifactCompleted, ArtifactCreated
from sessionary.schemas.records import ArtifactState, SessionState
from sessionary.schemas.types import ArtifactStateName
from sessionary.stream_processors.core.artifact.transitions import BY_EVENT, REPEATED
from sessionary.stream_processors.core.dependants.child_naming import ARTIFACT_PAYLOADS
from sessionary.stream_processors.core.dependants.row_size import object_to_row_size
from sessionary.stream_processors.core.machine import Arrival, Objection


def judge_artifact(session: SessionState, event: Event, arrival: Arrival) -> ArtifactState | Objection | None:
    """Judge an event against `arrival.child`; return the row after it, None if that stays.

    The artifact is of the run that the envelope names, or of the session.
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
        return object_to_row_size(arrival.child_key or b"", after, arrival) or after
    if transition is None:
        repeated = REPEATED.get((artifact.state, name))
        if repeated is not None:
            return repeated(artifact, payload)
        return Objection("illegal_transition", f"{name} is not possible for an artifact in {artifact.state}")
    if objection := transition.guard(artifact, payload):
        return objection
    after = artifact._replace(state=transition.target)
    if transition.target != artifact.state:
        after = after._replace(entered_at=arrival.now_ms)
    if isinstance(payload, ArtifactChunkAppended):
        return after._replace(size_bytes=payload.offset + payload.length)
    if isinstance(payload, ArtifactCompleted):
        return after._replace(size_bytes=payload.size_bytes, sha256=payload.sha256)
    return after


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
    )
