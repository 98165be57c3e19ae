"""Saves and loads artifacts, and reports them in a session."""

import hashlib
import re
import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Unpack

from sessionary.producers.artifacts.stores import ArtifactStore, open_store
from sessionary.producers.context.scope import EventMetadata, active_session
from sessionary.producers.errors import ArtifactDamaged, ArtifactDeleted, ArtifactMissing, Invalid
from sessionary.schemas.events import ArtifactChunkAppended, ArtifactCompleted, ArtifactCreated, Payload
from sessionary.schemas.limits import NAME_CHARACTERS_MAX

# An artifact's identity, and its reference in a message. Pure.


_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTROLS = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"  # and what changes the direction of text
# No name of a folder either: who saves the content by its name must not leave the place.
_FILE_NAME = re.compile(rf"(?!\.{{1,2}}$)[^/\\{_CONTROLS}]{{1,{NAME_CHARACTERS_MAX}}}")
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"
_MEDIA_TYPE = re.compile(rf"(?=.{{3,{NAME_CHARACTERS_MAX}}}$){_TOKEN}/{_TOKEN}( *;[^{_CONTROLS}]*)?")


class ArtifactReference(NamedTuple):
    """A reference to an artifact's body: its type, and the SHA-256 of its bytes as hex."""

    artifact_type: str
    sha256: str

    def __str__(self) -> str:
        """Return the text for messages and results, `artifact:<type>:<sha256>`."""
        return f"artifact:{self.artifact_type}:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> "ArtifactReference":
        """Parse the output of `str`. Raises `Invalid` for any other text."""
        scheme, _, rest = text.partition(":")
        artifact_type, _, sha256 = rest.rpartition(":")
        if scheme != "artifact" or not _TYPE.fullmatch(artifact_type) or not _SHA256.fullmatch(sha256):
            raise Invalid("invalid_value", f"{text!r} is no reference of an artifact: artifact:<type>:<sha256 as hex>")
        return cls(artifact_type, sha256)


class Artifact(NamedTuple):
    """A complete artifact.

    Attributes:
        artifact_id: UUID; two artifacts may have the same body.
        artifact_type: For example `markdown`, `json` or `pdf_text`.
        uri: Location of the body.
        sha256: SHA-256 of the body, as hex.
        size_bytes: Size of the body.
        file_name: The name under which people know the content.
        media_type: The media type of the content.
    """

    artifact_id: str
    artifact_type: str
    uri: str
    sha256: str
    size_bytes: int
    file_name: str | None = None
    media_type: str | None = None

    @property
    def reference(self) -> ArtifactReference:
        """The artifact's reference, as a message carries it."""
        return ArtifactReference(self.artifact_type, self.sha256)


def checked_type(artifact_type: str) -> str:
    """Return `artifact_type`. Raises `Invalid` unless it fits into a reference."""
    if not _TYPE.fullmatch(artifact_type):
        raise Invalid(
            "invalid_value",
            f"artifact type {artifact_type!r}: use 1 to 64 letters, digits, '_', '.' or '-', a letter or digit first",
        )
    return artifact_type


class FileInfo(NamedTuple):
    """What people know of an artifact's content: name and media type of its file, if any."""

    file_name: str | None = None
    media_type: str | None = None


NO_FILE: Final = FileInfo()


def checked_file(file_name: str | None, media_type: str | None) -> FileInfo:
    """Return both. Raises `Invalid` for a name that no folder can hold, or for no media type."""
    if file_name is not None and not (isinstance(file_name, str) and _FILE_NAME.fullmatch(file_name)):
        raise Invalid(
            "invalid_value",
            f"file_name is {file_name!r:.300}: use a name of 1 to {NAME_CHARACTERS_MAX} characters without a folder "
            "and without control characters, such as Path(...).name",
        )
    if media_type is not None and not (isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type)):
        raise Invalid(
            "invalid_value",
            f"media_type is {media_type!r:.300}: use type and subtype in at most {NAME_CHARACTERS_MAX} characters, "
            "such as 'application/pdf' or 'text/plain; charset=utf-8'",
        )
    return FileInfo(file_name, media_type)


# An artifact that is written in chunks, and continued after a crash.
#
# Each chunk is a separate body, named by its offset. It is stored before its event is sent, so that
# every chunk that was reported is there. When a stream is continued, bytes after the last
# checkpoint are cut off. A complete stream is one body under its hash, like any other artifact. A
# record of that hash stays in the place of the chunks, so that a kill during their removal loses
# nothing.


# The prompt with which a model continues a long text. Pure.


LINES_MAX = 30
_CHARACTERS_MAX = 4_000  # of the text that is quoted: lines may be long


def continuation_prompt(written: str, outline: Sequence[str] = (), *, lines_max: int = LINES_MAX) -> str:
    """Return a prompt to continue after `written`; its size does not depend on that of `written`.

    Args:
        written: The text so far, which may end anywhere.
        outline: The parts still to be written, in order.
        lines_max: How many of the last lines are quoted, from 1.
    """
    lines = written.rstrip().splitlines()[-lines_max:]
    tail = "\n".join(lines)[-_CHARACTERS_MAX:]
    parts = []
    if tail:
        parts += ["These are the last lines of a text that you are writing:", tail]
        parts.append("Continue with the next paragraph. Do not repeat or rewrite what is there.")
    else:
        parts.append("Begin the text.")
    if outline:
        parts += ["These parts are still missing:", "\n".join(f"- {part}" for part in outline)]
    return "\n\n".join(parts)


_OFFSET_DIGITS = 16
_COMPLETE = "complete"  # next to the chunks: the hash of the whole body, if there is one


def body_name(sha256: str) -> str:
    """Return the name under which a complete body is stored."""
    return f"sha256/{sha256[:2]}/{sha256}"


def deleted_name(sha256: str) -> str:
    """Return where a complete body is between its mark as deleted and its removal."""
    return f"deleted/{body_name(sha256)}"


def stream_folder(artifact_id: str) -> str:
    """Return the folder of an artifact's chunks."""
    return f"streams/{artifact_id}"


class ArtifactStream:
    """One artifact while it is written; `ArtifactLibrary.stream` makes it. Not thread-safe.

    Attributes:
        artifact_id: UUID, with which the stream can be continued.
        artifact_type: For example `markdown`.
    """

    def __init__(
        self,
        store: ArtifactStore,
        emit: Callable[..., str],
        artifact_type: str,
        artifact_id: str,
        chunks: Sequence[bytes],
        metadata: EventMetadata,
        file: FileInfo = NO_FILE,
        *,
        is_reported: bool = True,
    ) -> None:
        self.artifact_type, self.artifact_id = artifact_type, artifact_id
        self._file = file
        self._store, self._emit, self._metadata = store, emit, metadata
        self._chunks = list(chunks)
        self._bytes_written = sum(map(len, chunks))
        self._is_reported = is_reported

    @classmethod
    def reopen(
        cls,
        store: ArtifactStore,
        emit: Callable[..., str],
        artifact_type: str,
        artifact_id: str,
        bytes_written: int | None,
        metadata: EventMetadata,
        file: FileInfo,
    ) -> "ArtifactStream":
        """Return a stream with its chunks up to `bytes_written`, or a complete one with all.

        See `ArtifactLibrary.stream`.
        """
        chunks: list[bytes] = []
        offset = 0
        names = store.names(stream_folder(artifact_id))
        if _COMPLETE in names:
            body = store.read(body_name(store.read(f"{stream_folder(artifact_id)}/{_COMPLETE}").decode()))
            return cls(store, emit, artifact_type, artifact_id, (body,), metadata, file)
        while _offset_name(offset) in names and (bytes_written is None or offset < bytes_written):
            chunks.append(store.read(f"{stream_folder(artifact_id)}/{_offset_name(offset)}"))
            offset += len(chunks[-1])
        if bytes_written is not None and offset != bytes_written:
            raise Invalid(
                "invalid_value",
                f"artifact {artifact_id} has no chunk that ends at {bytes_written}, but one at {offset}",
            )
        for name in reversed(names):  # a remaining chunk would follow one of the same length
            if int(name) >= offset:
                store.remove(f"{stream_folder(artifact_id)}/{name}")
        return cls(store, emit, artifact_type, artifact_id, chunks, metadata, file, is_reported=False)

    @property
    def uri(self) -> str:
        """The location of the chunks."""
        return self._store.uri(stream_folder(self.artifact_id))

    @property
    def bytes_written(self) -> int:
        """The size of all chunks, which a checkpoint must keep."""
        return self._bytes_written

    def read(self) -> bytes:
        """Return the bytes written so far."""
        return b"".join(self._chunks)

    def append(self, chunk: str | bytes) -> int:
        """Store a chunk, then report it by `artifact_chunk_appended`; return `bytes_written`.

        An empty chunk does nothing. Raises `Unavailable` if the store does not take it: the same
        call may then be repeated. Otherwise raises as `Session.emit` does.
        """
        content = chunk.encode() if isinstance(chunk, str) else chunk
        if not content:
            return self._bytes_written
        offset = self._bytes_written
        self._store.write(f"{stream_folder(self.artifact_id)}/{_offset_name(offset)}", content)
        self._report_again()
        self._chunks.append(content)
        self._bytes_written += len(content)
        sha256 = hashlib.sha256(content).hexdigest()
        self._send(ArtifactChunkAppended(self.artifact_id, offset, len(content), sha256))
        return self._bytes_written

    def complete(self) -> Artifact:
        """Store the whole as one body, report it by `artifact_completed`, and drop the chunks.

        Raises as `append` does. May be repeated after an error, also by who continues the stream.
        """
        body = self.read()
        sha256 = hashlib.sha256(body).hexdigest()
        name = body_name(sha256)
        if not self._store.has(name):
            self._store.write(name, body)
        artifact = Artifact(self.artifact_id, self.artifact_type, self._store.uri(name), sha256, len(body), *self._file)
        folder = stream_folder(self.artifact_id)
        self._store.write(f"{folder}/{_COMPLETE}", sha256.encode())
        self._report_again()
        self._send(ArtifactCompleted(self.artifact_id, len(body), sha256))
        for chunk in self._store.names(folder):
            if chunk != _COMPLETE:
                self._store.remove(f"{folder}/{chunk}")
        return artifact

    def _report_again(self) -> None:
        """Report the beginning of a continued stream: its first process may have lost events.

        The existing chunks count as one, which also says that later bytes were cut off.
        """
        if self._is_reported:
            return
        kept = self.read()
        self._send(ArtifactCreated(self.artifact_id, self.artifact_type, self.uri, *self._file))
        self._send(ArtifactChunkAppended(self.artifact_id, 0, len(kept), hashlib.sha256(kept).hexdigest()))
        self._is_reported = True

    def _send(self, payload: Any) -> None:
        self._emit(payload, **self._metadata)


def _offset_name(offset: int) -> str:
    return f"{offset:0{_OFFSET_DIGITS}d}"


def new_artifact_id() -> str:
    """Return a UUIDv7: ids of one process are in the order of their making, within one ms too.

    Artifacts that the log has in the same ms are reported in the order of their ids.
    """
    now_ms, rest_ns = divmod(time.time_ns(), 1_000_000)
    value = now_ms << 80 | 0x7 << 76 | (rest_ns << 12) // 1_000_000 << 64 | 0b10 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=value))


class Reporter(Protocol):
    """The part of a session that artifacts use."""

    def emit(self, payload: Payload, *, occurred_at: datetime | None = None, **metadata: Unpack[EventMetadata]) -> str:
        """Send an event; see `Session.emit`."""
        ...


def _note_read(uri: str) -> None:
    session = active_session()
    if session is not None:
        with suppress(RuntimeError):  # of an `AsyncSession` that is not open yet
            session.core.note_access(uri, "read")


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

    def __repr__(self) -> str:
        return f"<ArtifactLibrary in {type(self.store).__name__}>"

    def save(
        self,
        session: Reporter,
        body: str | bytes,
        artifact_type: str,
        *,
        file_name: str | None = None,
        media_type: str | None = None,
        **metadata: Unpack[EventMetadata],
    ) -> Artifact:
        """Store a body, then report it by `artifact_created` and `artifact_completed`.

            library.save(session, pdf, "invoice", file_name="may.pdf", media_type="application/pdf")

        A text is stored in UTF-8. Name and media type belong to the artifact, not to its body:
        equal bodies are stored once. The name expires with personal data.

        Args:
            session: Where its events are sent.
            body: The content.
            artifact_type: 1 to 64 letters, digits, `_`, `.` or `-`.
            file_name: The name under which people know the content, without a folder.
            media_type: The content's media type, such as `application/pdf`.
            metadata: As in `Session.emit`.

        Raises `Invalid` for a type that fits into no reference, a name or a media type that is
        none, and `Unavailable` if the store does not take the body: then nothing is reported.
        Otherwise raises as `Session.emit` does.
        """
        file = checked_file(file_name, media_type)
        content = body.encode() if isinstance(body, str) else body
        sha256 = hashlib.sha256(content).hexdigest()
        name = body_name(sha256)
        uri = self.store.uri(name)
        artifact = Artifact(new_artifact_id(), checked_type(artifact_type), uri, sha256, len(content), *file)
        if not self.store.has(name):
            self.store.write(name, content)
        session.emit(ArtifactCreated(artifact.artifact_id, artifact_type, uri, *file), **metadata)
        session.emit(ArtifactCompleted(artifact.artifact_id, artifact.size_bytes, sha256), **metadata)
        return artifact

    def load(self, artifact: Artifact | ArtifactReference | str) -> bytes:
        """Return a body by its artifact, its reference, or the reference's text.

        In the block of a session, the access is reported in it, as `Session.access` does.

        Raises `Invalid` for a text that is no reference, `ArtifactMissing`, `Unavailable`,
        `ArtifactDeleted` if the artifact has expired, and `ArtifactDamaged` if the body does not
        have its hash.
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
        _note_read(self.store.uri(name))
        return body

    def stream(
        self,
        session: Reporter,
        artifact_type: str,
        *,
        artifact_id: str | None = None,
        bytes_written: int | None = None,
        file_name: str | None = None,
        media_type: str | None = None,
        **metadata: Unpack[EventMetadata],
    ) -> ArtifactStream:
        """Begin an artifact that is written in chunks, or continue one.

        Args:
            session: Where its events are sent.
            artifact_type: As for `save`.
            artifact_id: The stream to continue; None begins one, which sends `artifact_created`.
            bytes_written: The position of the last checkpoint: later bytes are cut off. None keeps
                all bytes that were written.
            file_name: As for `save`. To continue a stream, give the same again.
            media_type: As for `save`.
            metadata: As in `Session.emit`.

        Raises `Invalid` as `save` does and if `bytes_written` is not at the end of a chunk,
        `Unavailable`, or as `Session.emit` does.
        """
        checked_type(artifact_type)
        file = checked_file(file_name, media_type)
        if artifact_id is not None:
            return ArtifactStream.reopen(
                self.store, session.emit, artifact_type, artifact_id, bytes_written, metadata, file
            )
        stream = ArtifactStream(self.store, session.emit, artifact_type, new_artifact_id(), (), metadata, file)
        session.emit(ArtifactCreated(stream.artifact_id, artifact_type, stream.uri, *file), **metadata)
        return stream
