"""What is left of runs and tasks that vanished: packed or not, and whatever the batches are."""

from typing import Any

from sessionary.schemas.ids import SessionKey, new_task_id, run_key, task_key
from sessionary.schemas.records import RunTombstone, TombstoneChunk
from sessionary.stream_processors.core.run.rows import RUN_TOMBSTONE_MS
from sessionary.stream_processors.core.tombstones import DAY_MS, HASH_BYTES
from tests.core.fold_rig import FINISHED_RUN_MS
from tests.core.oracle_rig import FIRST_POSITION, OracleRig
from tests.core.stream_processors.core.test_partition import reload_fold
from tests.support.event_factory import EventFactory


class RunRig(OracleRig):
    """A fold beside the oracle, with one session; tombstones are packed in twos."""

    def __init__(self) -> None:
        super().__init__(position=FIRST_POSITION)
        self.agent = EventFactory()
        self.start(self.agent)

    def say(self, event_type: str, run_id: str, **fields: Any) -> str:
        return self.send(self.agent, event_type, {"run_id": run_id}, **fields)

    def jump(self, ms: int) -> None:
        """Let time pass without a record, and the outage's grace too."""
        self.at += ms
        self.tick()


def finish(rig: RunRig, run_id: str) -> bytes:
    """Let a detached run begin and complete; return its key."""
    assert rig.say("run_started", run_id, mode="detached") == "applied"
    assert rig.say("run_running", run_id, progress=None) == "applied"
    assert rig.say("run_completed", run_id, result_json=None, artifact_id=None) == "applied"
    return run_key(*rig.agent.key, run_id)


def test_vanished_runs_are_packed_a_task_by_its_id_too_and_the_chunk_goes_with_its_day() -> None:
    rig = RunRig()
    task_id = new_task_id(rig.agent.key)
    keys = [finish(rig, run_id) for run_id in ("r1", "r2", "r3", task_id)]
    assert not any(map(rig.fold.is_packed, keys))
    rig.jump(FINISHED_RUN_MS)
    chunks = [row for row in rig.fold.rows.values() if isinstance(row, TombstoneChunk)]
    assert not any(isinstance(row, RunTombstone) for row in rig.fold.rows.values())
    # Beside the four runs and the task's id, the session that timed out meanwhile may be in them.
    assert sum(len(chunk.key_hashes) for chunk in chunks) // HASH_BYTES - len(keys) in (1, 2)
    mine, foreign = task_key(rig.agent.key.tenant_id, task_id), task_key("zeta", task_id)
    assert all(map(rig.fold.is_packed, [*keys, mine]))
    assert not rig.fold.is_packed(foreign)
    assert not rig.fold.is_packed(SessionKey(rig.agent.key.tenant_id, task_id).encoded())
    assert reload_fold(rig.fold).is_packed(mine)
    rig.jump(RUN_TOMBSTONE_MS + DAY_MS)
    assert not any(map(rig.fold.is_packed, [*keys, mine]))


def test_a_batch_that_is_void_leaves_the_counts_as_they_were() -> None:
    rig = RunRig()
    finish(rig, "r1")
    before = rig.fold.vanishing, rig.fold.unpacked
    for ahead_ms in (FINISHED_RUN_MS, FINISHED_RUN_MS + RUN_TOMBSTONE_MS + DAY_MS):
        batch = rig.fold.begin()
        record = rig.log[-1]._replace(offset=len(rig.log), timestamp_ms=rig.at + ahead_ms, key=None, value=b"")
        assert batch.apply(record)
        batch.finish()
        rig.fold.begin()
        assert (rig.fold.vanishing, rig.fold.unpacked) == before
    rig.jump(FINISHED_RUN_MS + RUN_TOMBSTONE_MS + DAY_MS)
    assert (rig.fold.vanishing, rig.fold.unpacked) == (0, 0)


def test_a_record_with_the_key_of_a_vanished_run_is_rejected_as_any_with_such_a_key() -> None:
    rig = RunRig()
    key = finish(rig, "r1")
    rig.jump(FINISHED_RUN_MS)
    value = rig.agent.event_bytes("heartbeat")
    assert rig.append(key, value) == "rejected bad_key"
