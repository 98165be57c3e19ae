"""How a session's judge takes deltas, compressed snapshots, and ids; the oracle judges too."""

from typing import Any

import pytest

from sessionary.schemas.ids import snapshot_hash
from sessionary.schemas.snapshots import stored_snapshot
from sessionary.schemas.types import Snapshot, SnapshotMessage, ToolExecution
from sessionary.stream_processors.core.session.snapshots import SNAPSHOT_IDS_KEPT
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

LINES = ",".join(f'"line {number}"' for number in range(400))


def make(number: int, state_json: str, parent: Snapshot | None, **fields: Any) -> Snapshot:
    """Return a whole snapshot."""
    parent_id = None if parent is None else parent.snapshot_id
    made = Snapshot(f"snap_{number:012x}", parent_id, 1, state_json, None, "", "full", "none")._replace(**fields)
    return made._replace(content_hash=snapshot_hash(made))


FIRST = make(1, f'{{"lines":[{LINES}],"number":0}}', None)
SECOND = make(
    2,
    f'{{"lines":[{LINES}],"number":1}}',
    FIRST,
    context="user: hello\n",
    messages=(SnapshotMessage("user", "a" * 64, 3),),
    tool=ToolExecution("call", "search", "{}"),
    metadata={"server_version": "1.0.0"},
)
DELTA = stored_snapshot(SECOND, FIRST)


def started() -> tuple[OracleRig, EventFactory]:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, snapshot=stored_snapshot(FIRST, None))
    return rig, agent


def test_a_compressed_first_snapshot_is_the_whole_state() -> None:
    assert stored_snapshot(FIRST, None).compression == "gzip"
    rig, agent = started()
    row = rig.row_of(agent)
    assert (row.snapshot, row.state_json) == (FIRST, FIRST.state_json)


@pytest.mark.parametrize("event_type", ["snapshot_created", "session_paused", "session_terminated"])
def test_the_row_has_the_whole_content_of_a_delta(event_type: str) -> None:
    assert DELTA.encoding == "delta"
    rig, agent = started()
    assert rig.send(agent, event_type, snapshot=DELTA) == "applied"
    assert rig.row_of(agent).snapshot == SECOND


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"state_json": DELTA.state_json.replace('"value":1', '"value":2')}, "hash_mismatch"),
        ({"state_json": "no patch"}, "hash_mismatch"),
        ({"tool": None}, "hash_mismatch"),
        ({"body": b"\x1f\x8b", "compression": "gzip"}, "hash_mismatch"),
        ({"compression": "zstd"}, "invalid_value"),
        ({"parent_snapshot_id": "snap_00000000000f"}, "broken_chain"),
        ({"snapshot_id": FIRST.snapshot_id}, "snapshot_exists"),
    ],
)
def test_the_last_good_snapshot_is_served_after_a_damaged_one(damage: dict[str, Any], reason: str) -> None:
    rig, agent = started()
    assert rig.send(agent, "snapshot_created", snapshot=DELTA._replace(**damage)) == f"rejected {reason}"
    assert rig.row_of(agent).snapshot == FIRST
    (line,) = rig.last_audits()
    assert (line.kind, line.reason_code) == ("rejection", reason)
    assert rig.send(agent, "snapshot_created", snapshot=DELTA) == "applied"


def test_an_id_of_the_session_comes_once() -> None:
    rig, agent = started()
    assert rig.send(agent, "snapshot_created", snapshot=DELTA) == "applied"
    again = make(1, "{}", SECOND)
    assert rig.send(agent, "snapshot_created", snapshot=again) == "rejected snapshot_exists"
    assert rig.send(agent, "session_terminated", snapshot=again) == "applied"
    assert rig.row_of(agent).snapshot == SECOND
    assert "exists in the session" in (rig.last_audits()[0].reason or "")


def test_the_row_keeps_so_many_ids() -> None:
    rig, agent = started()
    head = FIRST
    for number in range(2, 5):
        head = make(number, "{}", head)
        assert rig.send(agent, "snapshot_created", snapshot=head) == "applied"
    ids = rig.row_of(agent).snapshot_ids
    assert ids == b"".join(number.to_bytes(6, "big") for number in (1, 2, 3))
    assert SNAPSHOT_IDS_KEPT * 6 == 6_144, "bytes of a row"


def test_a_delta_that_makes_the_row_too_large_is_rejected() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent, snapshot=FIRST)
    huge = make(2, '"' + "x" * 7_000_000 + '"', FIRST)
    packed = stored_snapshot(huge, FIRST)
    assert len(packed.body or b"") < 10_000
    assert rig.send(agent, "snapshot_created", snapshot=packed) == "rejected state_too_large"
    assert rig.row_of(agent).snapshot == FIRST
