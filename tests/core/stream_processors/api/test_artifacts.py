"""What the control API answers about artifacts."""

import pytest

from sessionary.schemas.ids import artifact_key
from sessionary.schemas.records import ArtifactState
from tests.core.stream_processors.api.run_rig import RunRig
from tests.core.stream_processors.api.test_steps import fields, shown

OPEN = ArtifactState("acme", "", None, "s-1", "a1", "markdown", "file:///a1", "open", 10, 10, 7, None)
COMPLETE = OPEN._replace(
    artifact_id="a2",
    state="complete",
    entered_at=20,
    size_bytes=9,
    sha256="ab" * 32,
    file_name="a.md",
    media_type="text/markdown",
)
OF_RUN, OF_SESSION = ("runs", "r1"), ()


def rig_with_artifacts(parts: tuple[str, ...], *artifacts: ArtifactState) -> RunRig:
    """Return a rig with a run `r1`; the artifacts are its, or the session's."""
    rig = RunRig()
    rig.send("run_started", "r1", mode="detached")
    parent = rig.run_key("r1") if parts else rig.agent.key.encoded()
    for artifact in artifacts:
        row = artifact._replace(session_id=rig.agent.key.session_id, run_id="r1" if parts else None)
        rig.load_child(artifact_key(parent, artifact.artifact_id), row)
    return rig


@pytest.mark.parametrize(("parts", "others"), [(OF_RUN, OF_SESSION), (OF_SESSION, OF_RUN)])
def test_artifacts_are_listed_by_their_creation_and_only_with_their_parent(
    parts: tuple[str, ...], others: tuple[str, ...]
) -> None:
    rig = rig_with_artifacts(parts, COMPLETE, OPEN, OPEN._replace(artifact_id="a0", created_at=11))
    status, found = rig.ask(*parts, "artifacts")
    assert (status, set(found)) == (200, fields("ArtifactList"))
    assert [artifact["artifact_id"] for artifact in found["artifacts"]] == ["a1", "a2", "a0"]
    assert [set(artifact) for artifact in found["artifacts"]] == [fields("Artifact")] * 3
    assert rig.ask(*others, "artifacts")[1]["artifacts"] == []


def test_an_artifact_is_shown_with_its_place_and_hash() -> None:
    rig = rig_with_artifacts(OF_RUN, OPEN, COMPLETE)
    first, second = rig.ask(*OF_RUN, "artifacts")[1]["artifacts"]
    assert shown(first, "run_id", "step_id", "artifact_type", "uri") == ("r1", "s-1", "markdown", "file:///a1")
    names = ("state", "size_bytes", "sha256", "created_ms", "entered_ms")
    assert shown(first, *names) == ("open", 7, None, 10, 10)
    assert shown(second, *names) == ("complete", 9, "ab" * 32, 10, 20)
    assert shown(first, "file_name", "media_type") == (None, None)
    assert shown(second, "file_name", "media_type") == ("a.md", "text/markdown")


@pytest.mark.parametrize(("parts", "reason"), [(OF_RUN, "unknown_run"), (OF_SESSION, "unknown_session")])
def test_the_artifacts_of_another_tenant_are_as_unknown_as_their_parent(parts: tuple[str, ...], reason: str) -> None:
    status, problem = rig_with_artifacts(parts, OPEN).ask(*parts, "artifacts", token="other")
    assert (status, problem["reason"]) == (404, reason)
