"""What events come to for the artifacts that they name."""

from typing import Any

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.ids import artifact_key, run_key
from sessionary.schemas.records import ArtifactState
from sessionary.schemas.types import Limits
from tests.core.fold_rig import FINISHED_RUN_MS
from tests.core.stream_processors.core.child_rig import ChildRig
from tests.support.event_factory import TICK

HASH = "0123456789abcdef" * 4


class ArtifactRig(ChildRig):
    """A fold; the run `r1` is at work."""

    def artifact(self, event: str, run_id: str | None = "r1", **fields: Any) -> str:
        """Send `artifact_` and `event` of the artifact `f`."""
        given: dict[str, Any] = {"artifact_id": "f"}
        if event == "created":
            given |= {"artifact_type": "json", "uri": "file:///f", "file_name": "a.json", "media_type": "text/json"}
        if event == "completed":
            given |= {"size_bytes": 9, "sha256": HASH}
        marks = {"run_id": run_id, "step_id": "s1"}
        return self.send(self.agent, f"artifact_{event}", marks, **{**given, **fields})

    def artifact_key(self, run_id: str | None = "r1") -> bytes:
        """Return the key of the artifact's row."""
        return artifact_key(run_key(*self.agent.key, run_id) if run_id else self.agent.key.encoded(), "f")

    def row(self, run_id: str | None = "r1") -> ArtifactState:
        """Return the artifact's row."""
        row = self.fold.rows[self.artifact_key(run_id)]
        assert isinstance(row, ArtifactState)
        return row

    def bring_to(self, state: str) -> None:
        """Bring the artifact to a state; '' leaves it unknown."""
        path = {
            "": (),
            "open": ("created",),
            "complete": ("created", "completed"),
            "soft_deleted": ("created", "soft_deleted"),
            "purged": ("created", "soft_deleted", "purged"),
        }
        for event in path[state]:
            assert self.artifact(event) == "applied"


@pytest.mark.parametrize("run_id", ["r1", None])
def test_an_artifact_is_created_filled_completed_deleted_and_purged(run_id: str | None) -> None:
    rig = ArtifactRig()
    assert rig.artifact("created", run_id) == "applied"
    begun = ArtifactState(
        *(*rig.agent.key, run_id, "s1", "f", "json", "file:///f", "open"),
        *(rig.at, rig.at, 0, None, "a.json", "text/json"),
    )
    assert rig.row(run_id) == begun
    rig.at += 10
    assert rig.artifact("chunk_appended", run_id, offset=0, length=5) == "applied"
    assert rig.artifact("chunk_appended", run_id, offset=5, length=4) == "applied"
    assert rig.row(run_id) == begun._replace(size_bytes=9)
    assert rig.artifact("completed", run_id) == "applied"
    complete = begun._replace(state="complete", entered_at=rig.at, size_bytes=9, sha256=HASH)
    assert rig.row(run_id) == complete
    rig.at += 10
    assert rig.artifact("soft_deleted", run_id) == "applied"
    assert rig.row(run_id) == complete._replace(state="soft_deleted", entered_at=rig.at)
    rig.at += 10
    assert rig.artifact("purged", run_id) == "applied"
    assert rig.row(run_id) == complete._replace(state="purged", entered_at=rig.at)


def test_a_chunk_continues_or_repeats_what_there_is() -> None:
    rig = ArtifactRig()
    rig.bring_to("open")
    assert rig.artifact("chunk_appended", offset=1, length=5) == "rejected invalid_value"
    assert rig.audits()[-1].reason == "the chunk begins at 1, but the artifact has 0 bytes"
    assert rig.artifact("chunk_appended", offset=0, length=5) == "applied"
    assert rig.artifact("chunk_appended", offset=6, length=5) == "rejected invalid_value"
    assert rig.artifact("chunk_appended", offset=3, length=4) == "applied"  # written again after a crash
    assert rig.row().size_bytes == 7
    assert rig.artifact("completed", size_bytes=9) == "rejected invalid_value"
    assert rig.row().state == "open"
    assert rig.artifact("completed", size_bytes=7) == "applied"


def test_without_chunks_an_artifact_has_any_size() -> None:
    rig = ArtifactRig()
    rig.bring_to("open")
    assert rig.artifact("completed", size_bytes=123) == "applied"
    assert rig.row().size_bytes == 123


@pytest.mark.parametrize("sha256", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 63 + "\n"])
def test_a_hash_has_64_digits(sha256: str) -> None:
    rig = ArtifactRig()
    rig.bring_to("open")
    assert rig.artifact("completed", sha256=sha256) == "rejected invalid_value"
    assert rig.row().state == "open"


def test_what_is_said_twice_changes_nothing() -> None:
    rig = ArtifactRig()
    rig.bring_to("open")
    assert rig.artifact("chunk_appended", offset=0, length=9) == "applied"
    before, heard = rig.row(), rig.found().run_seq
    rig.at += 5
    assert rig.artifact("created") == "applied"
    assert rig.row() == before
    assert rig.found().run_seq == heard + 1
    assert rig.artifact("completed") == "applied"
    complete = rig.row()
    rig.at += 5
    assert rig.artifact("completed") == "applied"
    assert rig.artifact("created") == "applied"
    assert rig.row() == complete


@pytest.mark.parametrize(
    ("state", "event", "fields"),
    [
        ("open", "created", {"uri": "file:///g"}),
        ("open", "created", {"artifact_type": "text"}),
        ("complete", "created", {"uri": "file:///g"}),
        ("complete", "completed", {"size_bytes": 8}),
        ("complete", "completed", {"sha256": "0" * 64}),
    ],
)
def test_what_is_said_twice_is_the_same(state: str, event: str, fields: dict[str, Any]) -> None:
    rig = ArtifactRig()
    rig.bring_to(state)
    before = rig.row()
    assert rig.artifact(event, **fields) == "rejected invalid_value"
    assert rig.row() == before


@pytest.mark.parametrize(
    ("state", "rejected"),
    [
        ("open", ["purged"]),
        ("complete", ["chunk_appended", "purged"]),
        ("soft_deleted", ["created", "chunk_appended", "completed", "soft_deleted"]),
        ("purged", ["created", "chunk_appended", "completed", "soft_deleted", "purged"]),
    ],
)
def test_any_other_pair_is_illegal(state: str, rejected: list[str]) -> None:
    rig = ArtifactRig()
    rig.bring_to(state)
    before = rig.row()
    for event in rejected:
        assert rig.artifact(event) == "rejected illegal_transition"
    assert rig.row() == before


@pytest.mark.parametrize("event", ["chunk_appended", "completed", "soft_deleted", "purged"])
def test_an_artifact_is_created_before_anything_else(event: str) -> None:
    rig = ArtifactRig()
    assert rig.artifact(event) == "rejected unknown_artifact"
    assert rig.audits()[-1].reason == f"artifact_{event} of artifact f, which was not created"
    assert rig.artifact("created", None) == "applied"
    assert rig.artifact(event) == "rejected unknown_artifact"  # that one is the session's


def test_a_finished_run_takes_only_the_end_of_its_artifacts() -> None:
    rig = ArtifactRig()
    rig.bring_to("open")
    assert rig.say("run_completed") == "applied"
    finished = rig.finished_run()
    for event in ("created", "chunk_appended", "completed"):
        assert rig.artifact(event) == "rejected illegal_transition"
    assert rig.finished_run() == finished
    assert rig.artifact("soft_deleted") == "applied"
    assert rig.artifact("purged") == "applied"
    assert rig.row().state == "purged"
    assert rig.finished_run().run_seq == finished.run_seq + 2
    assert rig.finished_run().entered_at == finished.entered_at


def test_an_artifact_of_a_run_that_did_not_begin_is_rejected() -> None:
    assert ArtifactRig().artifact("created", "none") == "rejected unknown_run"


def test_the_artifacts_of_a_detached_run_go_on_while_its_session_is_held() -> None:
    rig = ArtifactRig()
    assert rig.artifact("created", None) == "applied"
    assert rig.say("session_paused", None) == "applied"
    assert rig.artifact("created") == "applied"
    assert rig.artifact("completed") == "applied"
    assert rig.row().state == "complete"
    assert rig.artifact("completed", None) == "rejected illegal_transition"
    assert rig.row(None).state == "open"


def test_an_empty_run_id_names_no_run() -> None:
    rig = ArtifactRig()
    assert rig.artifact("created", "") == "applied"
    assert rig.row(None).run_id is None


def test_a_replayed_event_of_an_artifact_fills_no_gap() -> None:
    rig = ArtifactRig()
    missed = rig.agent.event_bytes("artifact_created", {"run_id": "r1"})
    assert rig.say("session_activity", None) == "applied"
    assert rig.append(rig.agent.key.encoded(), missed, [(REPLAYED_FROM, b"1")]) == "rejected late_filler"


def test_artifacts_vanish_with_their_run_or_session_and_cost_no_timer() -> None:
    rig = ArtifactRig(limits=Limits(archive_delay_ms=1_000))
    live, vanishing = rig.fold.live, rig.fold.vanishing
    assert rig.artifact("created") == "applied"
    assert rig.artifact("created", None) == "applied"
    assert (rig.fold.live, rig.fold.vanishing) == (live, vanishing)
    assert rig.fold.children(rig.agent.key.encoded()) == [rig.artifact_key(None)]
    assert rig.say("run_completed") == "applied"
    assert rig.say("session_terminated", None, reason="closed", snapshot=None) == "applied"
    rig.leap(700_000)
    assert rig.artifact_key(None) not in rig.fold.rows
    assert rig.row().state == "open"
    rig.fold.load_position(rig.fold.position._replace(clock_ms=rig.at + FINISHED_RUN_MS - 1_000))
    rig.at += FINISHED_RUN_MS
    rig.append(None, TICK)
    assert rig.artifact_key() not in rig.fold.rows
    assert rig.artifact_key() in {written[1] for written in rig.written if written[2] is None}


def test_a_row_of_an_artifact_has_the_bound_of_every_row() -> None:
    rig = ArtifactRig()
    rig.fold.load_position(rig.fold.position._replace(rules=rig.fold.position.rules._replace(row_bytes_max=8_000)))
    assert rig.artifact("created", uri="file:///" + "x" * 9_000) == "rejected state_too_large"
    assert "the artifact's row would have" in rig.audits()[-1].reason
    uri = "file:///" + "x" * 5_000
    assert rig.artifact("created", uri=uri) == "applied"
    rules, size = rig.fold.position.rules, len(rig.artifact_key()) + len(encode_record(rig.row()))
    for limit, outcome in ((size - 1, "rejected state_too_large"), (size, "applied")):
        rig.fold.load_position(rig.fold.position._replace(rules=rules._replace(row_bytes_max=limit)))
        assert rig.artifact("created", artifact_id="g", uri=uri) == outcome
