"""Streams of chunks, killed at every operation and continued: nothing repeated, nothing missing."""

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.producers.artifacts import Artifact, ArtifactLibrary, FolderStore, FsspecStore, continuation_prompt
from sessionary.producers.artifacts.stream import ArtifactStream
from sessionary.producers.errors import Invalid
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import ArtifactChunkAppended, ArtifactCompleted, ArtifactCreated

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
    lost = ArtifactStream(library.store, lambda payload, **marks: "", "text", "a-lost", (), {})
    with client, client.session(user_id="u") as session:
        told = library.stream(session, "text")
        for stream in (told, lost):
            stream.append("abc")
            stream.append("de")
        for artifact_id in (told.artifact_id, lost.artifact_id):
            library.stream(session, "text", artifact_id=artifact_id, bytes_written=kept).complete()
        found = session.records.artifacts()
    assert [(each.state, each.size_bytes) for each in found] == [("complete", kept)] * 2
    assert memory.refusals() == []


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
