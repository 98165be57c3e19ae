"""Artifacts in a session: what is stored, what is reported, what a reference gives back."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.producers.artifacts import ArtifactLibrary, ArtifactReference
from sessionary.producers.errors import ArtifactDamaged, Invalid
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import ArtifactCompleted, ArtifactCreated


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
