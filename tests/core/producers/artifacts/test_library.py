"""Artifacts in a session: what is stored, what is reported, what a reference gives back."""

import functools
import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.producers.artifacts import (
    Artifact,
    ArtifactLibrary,
    ArtifactReference,
    FolderStore,
    FsspecStore,
    continuation_prompt,
)
from sessionary.producers.artifacts.library import ArtifactStream
from sessionary.producers.errors import ArtifactDamaged, Invalid
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import ArtifactChunkAppended, ArtifactCompleted, ArtifactCreated


def artifact_events(memory: InMemoryTransport) -> list[object]:
    return [event.payload for event in memory.events() if type(event.payload).__name__.startswith("Artifact")]


def test_an_artifact_is_stored_then_reported_and_its_reference_gives_it_back(tmp_path: Path) -> None:
    client, memory = memory_client()
    library = ArtifactLibrary(tmp_path)
    with client, client.session(user_id="u") as session:
        artifact = library.save(session, "# Äpfel", "markdown", run_id=None)
    body = "# Äpfel".encode()
    assert artifact_events(memory) == [
        ArtifactCreated(artifact.artifact_id, "markdown", artifact.uri),
        ArtifactCompleted(artifact.artifact_id, len(body), hashlib.sha256(body).hexdigest()),
    ]
    assert str(artifact.reference) == f"artifact:markdown:{artifact.sha256}"
    for form in (artifact, artifact.reference, str(artifact.reference)):
        assert library.load(form) == body


def test_an_artifact_has_the_name_and_the_media_type_of_its_file(tmp_path: Path) -> None:
    client, memory = memory_client()
    library = ArtifactLibrary(tmp_path)
    file = ("Übersicht Mai (2).pdf", "application/pdf")
    with client, client.session(user_id="u") as session:
        saved = library.save(session, b"%PDF", "invoice", file_name=file[0], media_type=file[1])
        stream = library.stream(session, "log", file_name="log.txt", media_type="text/plain; charset=utf-8")
        stream.append("a")
        again = library.stream(session, "log", artifact_id=stream.artifact_id, file_name="log.txt")
        completed = again.complete()
        found = session.records.artifacts()
    assert (saved.file_name, saved.media_type) == file
    assert completed.file_name == "log.txt"
    assert [(each.file_name, each.media_type) for each in found] == [
        file,
        ("log.txt", "text/plain; charset=utf-8"),
    ]
    created = [event.payload for event in memory.events() if isinstance(event.payload, ArtifactCreated)]
    assert created[0] == ArtifactCreated(saved.artifact_id, "invoice", saved.uri, *file)
    assert memory.rejections() == []


def test_a_continued_stream_whose_beginning_was_lost_has_its_name(tmp_path: Path) -> None:
    client, _ = memory_client()
    library = ArtifactLibrary(tmp_path)
    lost = ArtifactStream(library.store, lambda payload, **metadata: "", "text", "a-lost", (), {})
    lost.append("abc")
    with client, client.session(user_id="u") as session:
        again = library.stream(session, "text", artifact_id="a-lost", file_name="a.txt", media_type="text/plain")
        again.complete()
        (found,) = session.records.artifacts()
    assert (found.state, found.file_name, found.media_type) == ("complete", "a.txt", "text/plain")


@pytest.mark.parametrize(
    "wrong",
    [
        *("", ".", "..", "a/b", "..\\b", "/tmp/a.pdf", "a\nb", "a\x00", "a\u2028", "\u202egpj.exe", "x" * 257),
        *(b"a.pdf", Path("a.pdf"), 7),
    ],
)
def test_a_file_name_that_is_none_is_refused_before_anything_is_stored(wrong: Any, tmp_path: Path) -> None:
    client, memory = memory_client()
    library = ArtifactLibrary(tmp_path)
    with client, client.session(user_id="u") as session:
        for store in (functools.partial(library.save, session, b"a"), functools.partial(library.stream, session)):
            with pytest.raises(Invalid, match=r"file_name is .*: use a name of 1 to 256 characters without a folder"):
                store("text", file_name=wrong)
    assert artifact_events(memory) == []
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("wrong", ["", "pdf", "a/", "/a", "a/b/c", "a /b", "a/b\n", "a/b; x\r\ny", "a/" + "b" * 255, 7])
def test_a_media_type_that_is_none_is_refused(wrong: Any, tmp_path: Path) -> None:
    client, memory = memory_client()
    library = ArtifactLibrary(tmp_path)
    with client, client.session(user_id="u") as session:
        for store in (functools.partial(library.save, session, b"a"), functools.partial(library.stream, session)):
            with pytest.raises(Invalid, match=r"media_type is .*: use type and subtype"):
                store("text", media_type=wrong)
    assert artifact_events(memory) == []


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/vnd.ms-excel", "image/svg+xml", 'text/csv; header="present"', "x/y;z=1"]
)
def test_a_media_type_may_have_parameters(media_type: str, tmp_path: Path) -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        saved = ArtifactLibrary(tmp_path).save(session, b"a", "text", media_type=media_type)
    assert saved.media_type == media_type


def test_equal_bodies_are_stored_once_and_have_two_ids(tmp_path: Path) -> None:
    client, _ = memory_client()
    library = ArtifactLibrary(tmp_path)
    with client, client.session(user_id="u") as session:
        first, second = (library.save(session, b"same", kind) for kind in ("json", "text"))
    assert first.uri == second.uri
    assert first.artifact_id != second.artifact_id
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_changed_body_is_found_out(tmp_path: Path) -> None:
    client, _ = memory_client()
    library = ArtifactLibrary(tmp_path)
    with client, client.session(user_id="u") as session:
        artifact = library.save(session, b"true", "json")
    (found,) = (path for path in tmp_path.rglob("*") if path.is_file())
    found.write_bytes(b"false")
    with pytest.raises(ArtifactDamaged, match="was changed"):
        library.load(artifact)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True), st.binary())
def test_a_reference_is_read_as_it_was_written(artifact_type: str, body: bytes) -> None:
    reference = ArtifactReference(artifact_type, hashlib.sha256(body).hexdigest())
    assert ArtifactReference.parse(str(reference)) == reference


@pytest.mark.parametrize(
    "text", ["", "artifact:", "artifact:json:12", f"file:json:{'0' * 64}", f"artifact:j son:{'0' * 64}"]
)
def test_another_text_is_no_reference(text: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no reference of an artifact"):
        ArtifactLibrary(tmp_path).load(text)


def test_a_type_that_fits_into_no_reference_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, pytest.raises(Invalid, match="artifact type"):
        ArtifactLibrary(tmp_path).save(session, b"-", "a:b")
    assert artifact_events(memory) == []
    assert not (tmp_path / "sha256").exists()


TEXT = [f"paragraph {n}\n" * (n + 1) for n in range(5)]


class Killed(BaseException):
    """The process dies here."""


class Fragile(FolderStore):
    """Dies before the operation with a given number."""

    def __init__(self, folder: Path, dies_at: int) -> None:
        super().__init__(folder)
        self.left = dies_at

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def write(self, name: str, body: bytes) -> None:
        self.count()
        super().write(name, body)

    def remove(self, name: str) -> None:
        self.count()
        super().remove(name)


def write_out(library: ArtifactLibrary, chunks: Sequence[str], saved: list[tuple[str, int]]) -> Artifact:
    """Write all chunks from the last checkpoint on; keep a checkpoint after each."""
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        artifact_id, done = saved[-1] if saved else (None, None)
        stream = library.stream(session, "markdown", artifact_id=artifact_id, bytes_written=done)
        for chunk in chunks:
            end = sum(len(before.encode()) for before in chunks[: chunks.index(chunk) + 1])
            if stream.bytes_written < end:
                assert stream.append(chunk) == end
                saved.append((stream.artifact_id, end))
        return stream.complete()


def test_chunks_are_reported_with_their_offsets_and_become_one_body(tmp_path: Path) -> None:
    client, memory = memory_client()
    library = ArtifactLibrary(tmp_path)
    with client, client.session(user_id="u") as session:
        stream = library.stream(session, "markdown")
        assert [stream.append(chunk) for chunk in ("ab", "", b"cde")] == [2, 2, 5]
        assert stream.read() == b"abcde"
        artifact = stream.complete()
    events = [event.payload for event in memory.events()]
    chunks = [payload for payload in events if isinstance(payload, ArtifactChunkAppended)]
    assert [(chunk.offset, chunk.length) for chunk in chunks] == [(0, 2), (2, 3)]
    assert [type(payload) for payload in events if type(payload) in (ArtifactCreated, ArtifactCompleted)] == [
        ArtifactCreated,
        ArtifactCompleted,
    ]
    assert library.load(artifact) == b"abcde"
    assert FolderStore(tmp_path).names(f"streams/{artifact.artifact_id}") == ["complete"]


def test_a_stream_goes_on_after_a_kill_at_any_operation(tmp_path: Path) -> None:
    dies_at, finished = 0, False
    while not finished:
        folder, saved = tmp_path / str(dies_at), list[tuple[str, int]]()
        try:
            artifact = write_out(ArtifactLibrary(Fragile(folder, dies_at)), TEXT, saved)
            finished = True
        except Killed:
            artifact = write_out(ArtifactLibrary(folder), TEXT, saved)
        assert ArtifactLibrary(folder).load(artifact).decode() == "".join(TEXT)
        dies_at += 1
    assert dies_at > len(TEXT) * 2  # chunks, the body, and the removal of chunks


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=5), st.data())
def test_what_lies_behind_the_checkpoint_is_cut_off_for_good(chunks: list[bytes], data: st.DataObject) -> None:
    client, _ = memory_client()
    library = ArtifactLibrary(FsspecStore(f"memory://{uuid.uuid4()}"))
    with client, client.session(user_id="u") as session:
        stream = library.stream(session, "text")
        ends = [0, *map(stream.append, chunks)]
        kept = data.draw(st.sampled_from(ends))
        again = library.stream(session, "text", artifact_id=stream.artifact_id, bytes_written=kept)
        assert again.read() == b"".join(chunks)[:kept]
        tail = data.draw(st.lists(st.binary(min_size=1, max_size=4), max_size=3))
        for chunk in tail:
            again.append(chunk)
        last = library.stream(session, "text", artifact_id=stream.artifact_id)
        assert last.read() == b"".join(chunks)[:kept] + b"".join(tail)


@pytest.mark.parametrize("kept", [0, 3, 5])
def test_a_continued_stream_is_whole_to_the_processor_whatever_was_lost_or_cut_off(kept: int, tmp_path: Path) -> None:
    client, memory = memory_client()
    library = ArtifactLibrary(tmp_path)
    lost = ArtifactStream(library.store, lambda payload, **metadata: "", "text", "a-lost", (), {})
    with client, client.session(user_id="u") as session:
        reported = library.stream(session, "text")
        for stream in (reported, lost):
            stream.append("abc")
            stream.append("de")
        for artifact_id in (reported.artifact_id, lost.artifact_id):
            library.stream(session, "text", artifact_id=artifact_id, bytes_written=kept).complete()
        found = session.records.artifacts()
    assert [(each.state, each.size_bytes) for each in found] == [("complete", kept)] * 2
    assert memory.rejections() == []


def test_reading_a_continued_stream_reports_nothing(tmp_path: Path) -> None:
    client, memory = memory_client()
    library = ArtifactLibrary(tmp_path)
    with client, client.session(user_id="u") as session:
        stream = library.stream(session, "text")
        stream.append("abc")
        before = len(memory.events())
        assert library.stream(session, "text", artifact_id=stream.artifact_id).read() == b"abc"
        assert len(memory.events()) == before


def test_a_checkpoint_that_no_chunk_ends_at_is_an_error(tmp_path: Path) -> None:
    client, _ = memory_client()
    library = ArtifactLibrary(tmp_path)
    with client, client.session(user_id="u") as session:
        stream = library.stream(session, "text")
        stream.append("abc")
        for wrong in (2, 9):
            with pytest.raises(Invalid, match=f"ends at {wrong}, but one at 3"):
                library.stream(session, "text", artifact_id=stream.artifact_id, bytes_written=wrong)
        assert library.stream(session, "text", artifact_id=stream.artifact_id).read() == b"abc"


@given(st.integers(0, 5_000), st.integers(1, 200))
def test_the_prompt_quotes_the_last_lines_only(lines: int, width: int) -> None:
    written = "\n".join(f"{n} ".ljust(width, "x") for n in range(lines))
    prompt = continuation_prompt(written, ["Outlook", "Summary"])
    assert len(prompt) < 4_400
    quoted = [line for line in prompt.splitlines() if line in set(written.splitlines())]
    assert len(quoted) <= 30
    assert prompt.endswith("- Outlook\n- Summary")
    assert (written.splitlines()[-1].rstrip() in prompt) if lines else prompt.startswith("Begin the text.")
