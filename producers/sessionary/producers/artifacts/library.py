"""Saves and loads artifacts, and reports them in a session."""

import hashlib
import secrets
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Protocol, Unpack

from sessionary.producers.artifacts.artifact import Artifact, ArtifactReference, checked_type
from sessionary.producers.artifacts.stores import ArtifactStore, open_store
from sessionary.producers.artifacts.stream import ArtifactStream, body_name, deleted_name
from sessionary.producers.context.marks import Marks
from sessionary.producers.errors import ArtifactDamaged, ArtifactDeleted, ArtifactMissing
from sessionary.schemas.events import ArtifactCompleted, ArtifactCreated, Payload


def new_artifact_id() -> str:
    """Return a UUIDv7: ids of one process are in the order of their making, within one ms too.

    Artifacts that the log has in the same ms are told in the order of their ids.
    """
    now_ms, rest_ns = divmod(time.time_ns(), 1_000_000)
    value = now_ms << 80 | 0x7 << 76 | (rest_ns << 12) // 1_000_000 << 64 | 0b10 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=value))


class Reporter(Protocol):
    """What artifacts need of a session."""

    def emit(self, payload: Payload, *, occurred_at: datetime | None = None, **marks: Unpack[Marks]) -> str:
        """Send an event; see `Session.emit`."""
        ...


class ArtifactLibrary:
    """Artifacts in one store. Thread-safe, if the store is.

        library = ArtifactLibrary("artifacts")
        artifact = library.save(session, report, "markdown")
        library.load(artifact.reference)

    Equal bodies are stored once. The calls wait for the store: in asyncio use them in
    `asyncio.to_thread`, with `session.sync_session`.
    """

    def __init__(self, place: str | Path | ArtifactStore) -> None:
        """Open the store at a folder, or at a URL that fsspec knows.

        Raises `SettingsError` if the extra `artifacts` is missing, or fsspec does not know the URL.
        """
        self.store = open_store(place) if isinstance(place, str | Path) else place

    def save(self, session: Reporter, body: str | bytes, artifact_type: str, **marks: Unpack[Marks]) -> Artifact:
        """Store a body, then report it by `artifact_created` and `artifact_completed`.

        A text is stored in UTF-8. Raises `Invalid` for a type that fits into no reference, and
        `Unavailable` if the store does not take the body: then nothing is reported. Otherwise
        raises as `Session.emit` does.
        """
        content = body.encode() if isinstance(body, str) else body
        sha256 = hashlib.sha256(content).hexdigest()
        name = body_name(sha256)
        artifact = Artifact(new_artifact_id(), checked_type(artifact_type), self.store.uri(name), sha256, len(content))
        if not self.store.has(name):
            self.store.write(name, content)
        session.emit(ArtifactCreated(artifact.artifact_id, artifact_type, artifact.uri), **marks)
        session.emit(ArtifactCompleted(artifact.artifact_id, artifact.size_bytes, sha256), **marks)
        return artifact

    def load(self, artifact: Artifact | ArtifactReference | str) -> bytes:
        """Return a body by its artifact, its reference, or the reference's text.

        Raises `Invalid` for a text that is no reference, `ArtifactMissing`, `Unavailable`,
        `ArtifactDeleted` if it has expired, and `ArtifactDamaged` if it does not have its hash.
        """
        found = ArtifactReference.parse(artifact) if isinstance(artifact, str) else artifact
        name = body_name(found.sha256)
        try:
            body = self.store.read(name)
        except ArtifactMissing:
            if self.store.has(deleted_name(found.sha256)):
                raise ArtifactDeleted(self.store.uri(name)) from None
            raise
        if hashlib.sha256(body).hexdigest() != found.sha256:
            raise ArtifactDamaged(self.store.uri(name))
        return body

    def stream(
        self,
        session: Reporter,
        artifact_type: str,
        *,
        artifact_id: str | None = None,
        bytes_written: int | None = None,
        **marks: Unpack[Marks],
    ) -> ArtifactStream:
        """Begin an artifact that is written in chunks, or continue one.

        Args:
            session: Where its events are sent.
            artifact_type: As for `save`.
            artifact_id: Of the stream to continue; None begins one, which sends `artifact_created`.
            bytes_written: As the last checkpoint has it: what lies behind it is cut off. None takes
                all that was written.
            marks: As in `Session.emit`.

        Raises `Invalid` if `bytes_written` is not at the end of a chunk, `Unavailable`, or as
        `Session.emit` does.
        """
        checked_type(artifact_type)
        if artifact_id is not None:
            return ArtifactStream.reopen(self.store, session.emit, artifact_type, artifact_id, bytes_written, marks)
        stream = ArtifactStream(self.store, session.emit, artifact_type, new_artifact_id(), (), marks)
        session.emit(ArtifactCreated(stream.artifact_id, artifact_type, stream.uri), **marks)
        return stream
