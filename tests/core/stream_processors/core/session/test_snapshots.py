"""How a session's judge takes deltas, compressed snapshots, and ids; the oracle judges too."""

from collections.abc import Sequence
from typing import Any

import pytest

import sessionary.schemas.snapshots as schemas_snapshots
from sessionary.schemas.ids import snapshot_hash, snapshots_key
from sessionary.schemas.records import CheckpointState, SessionState
from sessionary.schemas.snapshots import stored_snapshot
from sessionary.schemas.types import Snapshot, SnapshotMessage, ToolExecution
from sessionary.stream_processors.core.session.snapshots import (
    ID_RANGES_MAX,
    committed_snapshot,
    is_snapshot_known,
    kept_ids,
)
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
        ({"snapshot_id": "snap_00000000000A"}, "invalid_value"),
        ({"snapshot_id": "0c1d7c2e-5a2b-4d0e-9a53-0f6d8f2b7a11"}, "invalid_value"),
    ],
)
def test_the_last_good_snapshot_is_served_after_a_damaged_one(damage: dict[str, Any], reason: str) -> None:
    """R-003-68: the rejection is the event of the corruption, by which the alert fires."""
    rig, agent = started()
    assert rig.send(agent, "snapshot_created", snapshot=DELTA._replace(**damage)) == f"rejected {reason}"
    assert rig.row_of(agent).snapshot == FIRST
    (line,) = rig.last_audits()
    assert (line.kind, line.reason_code) == ("rejection", reason)
    assert rig.send(agent, "snapshot_created", snapshot=DELTA) == "applied"


def test_an_id_of_the_session_comes_once() -> None:
    """C-18: a collision is refused."""
    rig, agent = started()
    assert rig.send(agent, "snapshot_created", snapshot=DELTA) == "applied"
    again = make(1, "{}", SECOND)
    assert rig.send(agent, "snapshot_created", snapshot=again) == "rejected snapshot_exists"
    assert rig.send(agent, "session_terminated", snapshot=again) == "applied"
    assert rig.row_of(agent).snapshot == SECOND
    assert "exists in the session" in (rig.last_audits()[0].reason or "")


@pytest.mark.parametrize("wanted", ["", "snap_", "snap_00000000000A", "0c1d7c2e-5a2b-4d0e-9a53-0f6d8f2b7a11"])
def test_a_rollback_to_what_is_no_id_is_to_an_unknown_snapshot(wanted: str) -> None:
    rig, agent = started()
    versions: dict[str, Any] = {"base_version": 1, "new_version": 2, "state_json": "{}"}
    assert rig.send(agent, "session_rolled_back", snapshot_id=wanted, **versions) == "rejected unknown_snapshot"


def test_an_id_comes_once_however_many_snapshots_follow() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent, snapshot=FIRST)
    head = FIRST
    for number in range(2, 2_500):
        head = make(number, "{}", head)
        assert rig.send(agent, "snapshot_created", snapshot=head) == "applied"
    assert rig.row_of(agent).snapshot_ids == packed((1, 2_498))
    for number in (1, 2, 1_000, 2_498, 2_499):
        again = make(number, "{}", head)
        assert rig.send(agent, "snapshot_created", snapshot=again) == "rejected snapshot_exists"


def packed(*ranges: tuple[int, int]) -> bytes:
    return b"".join(number.to_bytes(6, "big") for each in ranges for number in each)


def row_with(numbers: Sequence[int]) -> SessionState:
    """Return a row whose chain had these ids; the last one is its head."""
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent, snapshot=FIRST)
    row = rig.row_of(agent)._replace(snapshot=make(numbers[0], "{}", None))
    for number in numbers[1:]:
        assert not is_snapshot_known(row, f"snap_{number:012x}")
        row = row._replace(snapshot_ids=kept_ids(row), snapshot=make(number, "{}", None))
    return row


@pytest.mark.parametrize(
    ("numbers", "ranges"),
    [
        ((5, 9), [(5, 5)]),
        ((5, 6, 9), [(5, 6)]),
        ((6, 5, 9), [(5, 6)]),
        ((5, 7, 6, 9), [(5, 7)]),
        ((9, 1, 5, 2), [(1, 1), (5, 5), (9, 9)]),
        ((0, 2**48 - 1, 7), [(0, 0), (2**48 - 1, 2**48 - 1)]),
    ],
)
def test_a_row_knows_ids_as_ranges(numbers: Sequence[int], ranges: list[tuple[int, int]]) -> None:
    assert row_with(numbers).snapshot_ids == packed(*ranges)


def test_of_too_many_ranges_the_nearest_become_one_and_no_id_comes_twice() -> None:
    numbers = [number * 1_000 for number in range(ID_RANGES_MAX - 1)]
    row = row_with([*numbers, 5_003, 10**9])
    assert len(row.snapshot_ids) == 12 * ID_RANGES_MAX
    assert not is_snapshot_known(row, f"snap_{5_001:012x}")
    row = row._replace(snapshot_ids=kept_ids(row), snapshot=make(7, "{}", None))
    assert len(row.snapshot_ids) == 12 * ID_RANGES_MAX
    known = [number for number in range(10_000) if is_snapshot_known(row, f"snap_{number:012x}")]
    assert known == [0, 7, 1_000, 2_000, 3_000, 4_000, *range(5_000, 5_004), 6_000, 7_000, 8_000, 9_000]


@pytest.mark.parametrize(
    ("numbers", "made"),
    [((5,), 4), ((4, 5), 3), ((4, 2, 5), 3), ((3, 2, 7, 5), 4), ((0,), 2**48 - 1), ((2**48 - 1, 0), 2**48 - 2)],
)
def test_the_processors_own_id_is_below_the_head(numbers: Sequence[int], made: int) -> None:
    row = row_with(numbers)._replace(state_json='{"changed":1}')
    assert committed_snapshot(row).snapshot_id == f"snap_{made:012x}"
    assert not is_snapshot_known(row, f"snap_{made:012x}")


def test_a_delta_that_makes_the_row_too_large_is_rejected() -> None:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent, snapshot=FIRST)
    huge = make(2, '{"a":"' + "x" * 7_000_000 + '"}', FIRST)
    packed = stored_snapshot(huge, FIRST)
    assert len(packed.body or b"") < 10_000
    assert rig.send(agent, "snapshot_created", snapshot=packed) == "rejected state_too_large"
    assert rig.row_of(agent).snapshot == FIRST


def test_a_delta_is_resolved_once_for_session_and_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def count(snapshot: Snapshot) -> str:
        hashed.append(snapshot.snapshot_id)
        return snapshot_hash(snapshot)

    delta = stored_snapshot(make(2, f'{{"lines":[{LINES}],"number":1}}', FIRST), FIRST)
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent, snapshot=stored_snapshot(FIRST, None))
    monkeypatch.setattr(schemas_snapshots, "snapshot_hash", count)
    assert rig.send(agent, "snapshot_created", snapshot=delta) == "applied"
    assert hashed == [delta.snapshot_id]
    row = rig.fold.rows.get(snapshots_key(agent.key.encoded()))
    assert isinstance(row, CheckpointState)
    assert [saved.data_json for saved in row.saved] == [f'{{"lines":[{LINES}],"number":1}}']
