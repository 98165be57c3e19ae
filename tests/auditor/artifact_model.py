"""The oracle's model of an artifact: what its events make of it."""

from tests.auditor.decoding import Rejection, Row

ARTIFACT_TYPES = (
    "artifact_created",
    "artifact_chunk_appended",
    "artifact_completed",
    "artifact_soft_deleted",
    "artifact_purged",
)
DELETIONS = ("artifact_soft_deleted", "artifact_purged")
_SOURCES = {
    "artifact_chunk_appended": ("open",),
    "artifact_completed": ("open", "complete"),
    "artifact_soft_deleted": ("open", "complete"),
    "artifact_purged": ("soft_deleted",),
}


def next_artifact(
    artifact: Row | None, row: Row, run: Row | None, kind: str, envelope: Row, fields: Row, now: int
) -> Row:
    """Return the artifact after an event of it; raises `Rejection`.

    `row` is its session, `run` its run or None.
    """
    if kind == "artifact_created":
        return _created(artifact, row, run, envelope, fields, now)
    if artifact is None:
        raise Rejection("unknown_artifact")
    if artifact["state"] not in _SOURCES[kind]:
        raise Rejection("illegal_transition")
    match kind:
        case "artifact_chunk_appended":
            if fields["offset"] > artifact["size_bytes"]:
                raise Rejection("invalid_value")
            return artifact | {"size_bytes": fields["offset"] + fields["length"]}
        case "artifact_completed":
            return _completed(artifact, fields, now)
    return artifact | {"state": kind.removeprefix("artifact_"), "entered_at": now}


def _created(artifact: Row | None, row: Row, run: Row | None, envelope: Row, fields: Row, now: int) -> Row:
    names = ("artifact_id", "artifact_type", "uri")
    if artifact is not None:
        if artifact["state"] not in ("open", "complete"):
            raise Rejection("illegal_transition")
        if any(fields[name] != artifact[name] for name in names):
            raise Rejection("invalid_value")
        return artifact
    return {
        **{name: row[name] for name in ("tenant", "session")},
        **{name: fields[name] for name in names},
        "kind": "ArtifactState",
        "run_id": None if run is None else run["run_id"],
        "step_id": envelope["step_id"],
        "state": "open",
        "created_at": now,
        "entered_at": now,
        "size_bytes": 0,
        "sha256": None,
        "file_name": fields["file_name"],
        "media_type": fields["media_type"],
    }


def _completed(artifact: Row, fields: Row, now: int) -> Row:
    brought = {name: fields[name] for name in ("size_bytes", "sha256")}
    if artifact["state"] == "complete":
        if artifact | brought != artifact:
            raise Rejection("invalid_value")
        return artifact
    digits = set(fields["sha256"])
    if len(fields["sha256"]) != 64 or not digits <= {*"0123456789abcdef"}:
        raise Rejection("invalid_value")
    if artifact["size_bytes"] not in (0, fields["size_bytes"]):
        raise Rejection("invalid_value")
    return artifact | brought | {"state": "complete", "entered_at": now}
