"""Random migrations among random agents: the fold and the oracle agree, whatever chance sends."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, get_args

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.ids import content_hash
from sessionary.schemas.records import AuditRecord
from sessionary.stream_processors.core.session.facts import AbortReason
from sessionary.stream_processors.core.session.transitions import TRANSITIONS, processor_only
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import FIRST_POSITION
from tests.core.random_agents import RandomAgents
from tests.core.stream_processors.core.test_partition import all_outputs, fold_again
from tests.support.event_factory import TICK, EventFactory

RUNS, STEPS = 18, 250
# All that an owner may send; what needs no epoch, and what only a processor may say, is left out.
LATE = sorted(
    {*PAYLOADS} - {"session_created", "resources_released", "session_migration_completed"} - processor_only(TRANSITIONS)
)
KEPT = ("owner_service", "epoch", "state", "version", "state_json", "snapshot", "last_event_at", "migration")


class MigrationAgents(RandomAgents):
    """Agents whose sessions often move."""

    def weighted_actions(self) -> list[tuple[int, Callable[[], None]]]:
        others = [(weight, act) for weight, act in super().weighted_actions() if act != self.migrate_session]
        return [*others, (60, self.migrate_session), (8, self.let_time_end_it), (8, self.take_over)]

    def let_time_end_it(self) -> None:
        """Let an open migration run into the end of its time, unless the session ends before."""
        agent = self.pick_active_agent()
        row = self.row_of(agent)
        if row is None or row.migration is None or not row.migration.is_open:
            return
        self.rig.at = max(self.rig.at, min(row.migration.expires_at, self.rig.at + 4_500))
        self.rig.tick()


def check_owners(lines: list[AuditRecord]) -> None:
    """Assert that no session's epoch falls, and that each epoch has one owner."""
    owners: dict[tuple[str, str, int], str | None] = {}
    epochs: dict[tuple[str, str], int] = {}
    for line in lines:
        session = line.tenant_id, line.session_id
        if not line.audit_seq or line.owner_service is None:
            continue
        assert line.epoch >= epochs.get(session, 0)
        epochs[session] = line.epoch
        assert owners.setdefault((*session, line.epoch), line.owner_service) == line.owner_service


def test_both_judges_agree_on_migrations() -> None:
    seen: Counter[str] = Counter()
    for seed in range(RUNS):
        crowd = MigrationAgents(Random(seed), FIRST_POSITION)
        for _ in range(STEPS):
            crowd.act_once()
        assert fold_again(crowd.rig.log, Random(seed), FIRST_POSITION) == all_outputs(crowd.rig)
        check_owners([line for outcome in crowd.rig.outcomes for _, line in outcome.records_on("audit")])
        for outcome in crowd.rig.outcomes:
            for _, line in outcome.records_on("audit"):
                if line.kind == "migration":
                    seen.update([f"{line.migration_step}", line.reason_code])
            seen.update(letter.reason for _, letter in outcome.records_on("rejected"))
    expected = {"offered", "prepared", "completed", "aborted", *get_args(AbortReason)} - {"session_resumed"}
    rejected = {"migration_open", "migration_moved", "unknown_migration", "not_owner", "processor_only"}
    assert (expected | rejected) - seen.keys() == set()


def lose_session(rng: Random, rig: FoldRig, owner: EventFactory, taker: EventFactory) -> None:
    """Let a session go from its owner, at epoch 1, to another service, in one of some ways."""
    way = rng.choice(["migrated", "migrated", "migrated while paused", "migrated in timeout", "claimed"])
    if way == "claimed":
        assert rig.send(taker, "session_taken_over", as_operator=True) == "applied"
        return
    if way == "migrated while paused":
        assert rig.send(owner, "session_paused") == "applied"
    elif way == "migrated in timeout":
        for _ in range(13):
            rig.at += 4_999
            rig.append(None, TICK)
        assert rig.row_of(owner).state == "Timeout"
    steps: list[tuple[EventFactory, str]] = [
        (owner, "session_migration_offered"),
        (taker, "session_migration_loaded"),
        (taker, "session_migration_accepted"),
    ]
    for agent, event_type in steps:
        row = rig.row_of(owner)
        fields: dict[str, Any] = {}
        agent.epoch = row.epoch
        if event_type == "session_migration_accepted":
            same = {"version": row.version, "content_hash": content_hash(row.state_json)}
            fields = {"migration_id": "m1", "target_service": "shipping", **same}
        assert rig.send(agent, event_type, **fields) == "applied"
        for _ in range(rng.randint(0, 2)):  # the owner goes on meanwhile
            rig.send(owner, rng.choice(["session_activity", "state_updated", "session_resumed"]), {"epoch": 1})


def test_a_thousand_schedules_accept_nothing_of_a_former_owner() -> None:
    tried: Counter[str] = Counter()
    for seed in range(1_000):
        rng, rig = Random(seed), FoldRig()
        owner, taker = EventFactory(), EventFactory(service="shipping", producer="q")
        rig.start(owner)
        owner.head = rig.row_of(owner).snapshot.snapshot_id
        lose_session(rng, rig, owner, taker)
        for _ in range(rng.randint(1, 4)):
            late, before = rng.choice(LATE), rig.row_of(owner)
            stale = owner.event_bytes(late, {"epoch": 1})
            outcome = rig.append(owner.key.encoded(), stale)
            assert outcome in ("rejected stale_epoch", "fenced beat" if late == "heartbeat" else ""), (seed, late)
            tried[late] += 1
            after = rig.row_of(owner)
            assert [getattr(after, name) for name in KEPT] == [getattr(before, name) for name in KEPT], (seed, late)
        assert rig.row_of(owner).owner_service == "shipping"
    assert tried.total() >= 1_000
    assert {*tried} == {*LATE}
