"""Records of the events topic as no agent should send them.

They are added to those of the `RecordFuzzer`: values beyond their bounds, content of strangers,
broken chains, ids that are used twice, sessions that are full, and days that pass.
"""

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from confluent_kafka import Message

from sessionary.schemas.codec import encode_record
from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.ids import SessionKey, content_hash, partition_of, run_key
from sessionary.schemas.limits import TRANSACTIONS_MAX
from sessionary.schemas.records import QuotaVerdict, RunState, SessionState
from sessionary.schemas.types import CleanupAction, ErrorInfo, QuotaName, RunQuota, SessionQuota, Snapshot
from sessionary.stream_processors.core.session.clocks import waits_for_quota
from sessionary.stream_processors.core.session.transitions import RECOVERY_ATTEMPTS_MAX
from tests.core.oracle_rig import START_MS
from tests.core.people_moves import draw_actor, draw_operator_event, draw_question
from tests.core.random_agents import LONG_TEXTS, OUT_OF_BOUNDS, SHORT
from tests.core.record_fuzzer import PARTITIONS, FuzzedRecord, Maker, RecordFuzzer
from tests.core.run_moves import CALL_WAY, ERRORS, WORK, draw_agent_event, draw_point_event
from tests.fuzz.full_sessions import FullSessions, agent_of
from tests.support.event_factory import EventFactory, snapshot

_DAY_MS = 86_400_000
_LEAPS_MS = (*[_DAY_MS + 3_600_000] * 4, 15 * _DAY_MS, 31 * _DAY_MS)  # a resume, a tombstone, a finished run expires
_OUTAGE_GRACE_TICKS = 12  # of a few seconds: as long as no timer fires after an outage
_AGES_MS = (0, _DAY_MS, *[60 * _DAY_MS, 900 * _DAY_MS] * 3)  # of the times in session ids
_ENDED_TOGETHER = 9  # sessions: more than two chunks of tombstones
_REPLAYED_SHARE = 0.01
_REPLAYED: list[tuple[str, str | bytes | None]] = [(REPLAYED_FROM, b'"events:0:1"')]
_TOO_LARGE_CHARS, _TOO_LARGE_SHARE = 2_200_000, 0.05
_UNHEARD_SHARE, _LATE_FROM = 0.1, 0.99  # of the verdicts on what waits; those on what was granted
_LARGE_TEXT = '{"a":"' + "é" * 3_000 + '"}'  # kept apart from its row


class StoryFuzzer(RecordFuzzer):
    """Makes records for a fold whose partition has the full sessions."""

    def __init__(
        self,
        seed: int,
        row_of: Callable[[bytes], Any],
        is_packed: Callable[[bytes], bool],
        full: FullSessions,
    ) -> None:
        """`is_packed` says whether a tombstone without a row is left of a key."""
        super().__init__(seed, row_of)
        self._is_packed = is_packed
        self._full_of_runs, self._full_of_children = agent_of(full.of_runs), agent_of(full.of_children)
        self._full_of_producers = agent_of(full.of_producers)
        self._leap_ms, self._now_ms = 0, START_MS

    def next_record(self) -> FuzzedRecord:
        """Return the next record."""
        if self._queue and (verdict := self._draw_verdict(self._queue[0][0] or b"")):
            self._recent.append(verdict)
            return self._with_headers(*verdict)
        if not self._queue and self._random.random() < _REPLAYED_SHARE and (replayed := self._replayed_record()):
            return replayed
        record = super().next_record()
        if record.later_ms and self._leap_ms:
            record, self._leap_ms = record._replace(later_ms=self._leap_ms), 0
        self._now_ms += record.later_ms
        return record

    def _makers(self) -> list[Maker]:
        return [
            *super()._makers(),
            (self._exceed_bounds, 4),
            (self._forge_content, 5),
            (self._use_number_twice, 2),
            (self._take_over, 3),
            (self._beat_on, 1),
            (self._ask_person, 0.7),
            (self._fail_for_good, 0.8),
            (self._step_in, 0.8),
            (self._migrate, 0.7),
            (self._create_by_time, 2),
            (self._overfill, 2),
            (self._make_call, 0.7),
            (self._send_agent_event, 4),
            (self._send_large_content, 2),
            (self._resume_too_late, 3.6),
            (self._lose_task, 1),
            (self._send_point_event, 3),
            (self._end_many, 0.4),
            (self._begin_too_many, 0.4),
            (self._release_twice, 0.7),
            (self._recover_too_often, 0.7),
            (self._damage_value, 44),
        ]

    def _pick_agent(self) -> EventFactory:
        place = self._random.randrange(len(self._agents))
        if self._is_packed(self._agents[place].key.encoded()) and self._random.random() < 0.2:
            self._agents[place] = self._new_agent()
        agent = super()._pick_agent()
        row = self._state_of(agent)
        if row is not None and self._random.random() < 0.9:
            agent.service = row.owner_service
        return agent

    def _replayed_record(self) -> FuzzedRecord | None:
        """Return an event with a missing number, as an operator replays it; None if none is."""
        agent = self._random.choice((self._pick_agent(), self._crowd))
        row = self._state_of(agent)
        ledgers = [] if row is None else [ledger for ledger in row.producers if ledger.missing]
        if not ledgers:
            return None
        ledger = self._random.choice(ledgers)
        marks = {
            "producer_id": ledger.producer_id,
            "producer_seq": self._random.randint(*self._random.choice(ledger.missing)),
        }
        value = agent.event_bytes(self._random.choice([*WORK, "state_updated"]), marks)
        return FuzzedRecord(agent.key.encoded(), value, Message("t", 0, 0, headers=_REPLAYED))

    def _draw_verdict(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return a verdict, mostly on what waits in the session under `key`; None without a claim.

        Most are granted: otherwise few sessions would become Active.
        """
        row, chance = self._row_of(key), self._random.random()
        if not isinstance(row, SessionState) or chance < _UNHEARD_SHARE:
            return None
        quota: QuotaName = "live_sessions"
        claim: RunQuota | SessionQuota | None = row.quota
        run_id = ""
        if not waits_for_quota(row) and row.open_runs:
            run_id, quota = self._random.choice(row.open_runs).run_id, "concurrent_runs"
            run = self._row_of(run_key(row.tenant_id, row.session_id, run_id))
            claim = run.quota if isinstance(run, RunState) else None
        if claim is None or (claim.granted and chance < _LATE_FROM):
            return None
        offset = claim.offset + self._random.choice((*[0] * 9, 1))
        granted, token_limit = self._random.random() < 0.9, self._random.choice((None, 100))
        verdict = QuotaVerdict(quota, run_id, offset, granted, 3, "q1", None if granted else token_limit)
        return key, encode_record(verdict)

    def _exceed_bounds(self) -> None:
        if self._random.random() < 0.3:
            self._send(self._pick_agent(), self._random.choice(WORK), **self._random.choice(LONG_TEXTS))
        else:
            event_type, fields, envelope = self._random.choice(OUT_OF_BOUNDS)
            self._send(self._random.choice((self._pick_agent(), self._crowd)), event_type, fields, **envelope)

    def _forge_content(self) -> None:
        """Send content that is not the session's next one, or is not the sender's to change."""
        agent = self._random.choice((self._pick_agent(), self._crowd))
        chance = self._random.random()
        if chance < 0.4:
            event_type = self._random.choice(("state_updated", "snapshot_created"))
            self._send(agent, event_type, service_id=f"not-{agent.service}"[:128])
            return
        is_hash = chance < 0.7
        wrong: Snapshot | None = (
            snapshot("wrong")._replace(content_hash="0" * 64) if is_hash else snapshot("wrong", parent="nowhere")
        )
        event_type = self._random.choice(
            ("snapshot_created", "snapshot_created", "session_paused", "session_terminated")
        )
        if self._random.random() < 0.2:
            agent, event_type = self._new_agent(), "session_created"
        if event_type == "session_paused" and self._random.random() < 0.5:
            wrong = None
        reason = {"reason": "cancelled"} if event_type == "session_terminated" else {}
        self._send(agent, event_type, {"snapshot": wrong, **reason})

    def _use_number_twice(self) -> None:
        """Send two events with one number, as two processes with one producer id do."""
        agent = self._random.choice((self._pick_agent(), self._crowd))
        self._send(agent, self._random.choice(WORK))
        self._send(agent, self._random.choice(WORK), producer_seq=agent.seq, event_id=f"another-{self._made}")

    def _take_over(self) -> None:
        agent = self._pick_agent()
        service = self._random.choice((agent.service, "other", "billing"))
        self._send(agent, "session_taken_over", service_id=service, agent_id=f"agent-{service}")

    def _beat_on(self) -> None:
        """Send heartbeats as a client that does not know of a newer epoch."""
        agent = self._crowd if self._random.random() < 0.5 else self._pick_agent()
        row = self._state_of(agent)
        for _ in range(self._random.randint(1, 3)):
            self._send(agent, "heartbeat", epoch=1 if row is None else row.epoch - 1)

    def _ask_person(self) -> None:
        """Let an agent ask, mostly in the session that never ends; no answers come, and one."""
        agent = self._crowd if self._random.random() < 0.7 else self._pick_agent()
        self._send(agent, "session_paused", draw_question(self._random))
        self._send(agent, "session_resumed", {"snapshot_id": None})
        self._send(agent, "session_resumed", {"snapshot_id": None, "approved": True})
        answer = {"snapshot_id": None, "approved": self._random.choice((True, False)), "as_operator": True}
        self._send(agent, "session_resumed", {**answer, "question_id": "another"}, service_id="control-api")
        if agent is self._crowd or self._random.random() < 0.7:
            self._send(agent, "session_resumed", answer, service_id="control-api", actor="alice")

    def _fail_for_good(self) -> None:
        """Report an error that cannot be recovered from, recover, and end for a wrong reason."""
        agent = self._pick_agent()
        self._send(agent, "session_errored", {"error": ErrorInfo("UNKNOWN", "broken", "it broke")})
        self._send(agent, "session_errored", {"error": ErrorInfo("fatal", "broken", "it broke")})
        self._send(agent, "session_phase_changed", {"phase": "recovery"})
        for _ in range(2):
            self._send(agent, "session_recovered")
            self._send(agent, "session_terminated", {"reason": "completed"})

    def _recover_too_often(self) -> None:
        """Recover from an error of which it is possible, more often than is allowed."""
        agent = self._pick_agent()
        row = self._state_of(agent)
        epoch = 1 if row is None else row.epoch
        for attempt in range(RECOVERY_ATTEMPTS_MAX + 4):
            at = epoch + min(attempt, RECOVERY_ATTEMPTS_MAX)
            self._send(agent, "session_errored", {"error": ErrorInfo("retryable", "e", "e")}, epoch=at)
            self._send(agent, "session_phase_changed", {"phase": "recovery"}, epoch=at)
            self._send(agent, "session_recovered", epoch=at)

    def _step_in(self) -> None:
        """Let an operator do what may fit the session's state."""
        agent = self._pick_agent()
        row = self._state_of(agent)
        event_type, fields = ("session_resumed", {}) if row is None else draw_operator_event(self._random, row)
        if self._random.random() < 0.3:
            event_type, fields = "requests_repeated", {"as_operator": True}
        self._send(agent, event_type, fields, service_id="control-api", actor=draw_actor(self._random))

    def _migrate(self) -> None:
        """Send the steps of a migration, wrong ones among them.

        The session that never ends stays with its owner.
        """
        agent = self._crowd if self._random.random() < 0.6 else self._begin_agent()
        row = self._state_of(agent)
        version, text = (1, "{}") if row is None else (row.version, row.state_json)
        named = {"migration_id": f"m{self._made}"}
        target = {**named, "target_service": "shipping"}
        same = {"version": version, "content_hash": content_hash(text)}
        self._send(agent, "session_migration_offered", {**target, "as_operator": self._random.random() < 0.5})
        self._send(agent, "session_migration_offered", target)
        self._send(agent, "session_migration_loaded", {"migration_id": "another"}, service_id="shipping")
        self._send(agent, "session_migration_loaded", named, service_id="shipping")
        self._send(agent, "session_resumed", {"snapshot_id": None})
        self._send(agent, "session_migration_accepted", {**target, **same, "version": 0}, service_id="shipping")
        if agent is not self._crowd:
            self._send(agent, "session_migration_accepted", {**target, **same}, service_id="shipping")
        service = self._random.choice((agent.service, "shipping"))
        self._send(agent, "session_migration_aborted", named, service_id=service)

    def _begin_agent(self) -> EventFactory:
        """Return the agent of a new session, which is Active when it is judged."""
        agent = self._agents[self._random.randrange(len(self._agents))] = self._new_agent()
        self._send(agent, "session_created", {"limits": SHORT})
        self._start_created(agent)
        return agent

    def _create_by_time(self) -> None:
        """Create a session whose id tells its time; it may be long ago."""
        age_ms = self._random.choice(_AGES_MS)
        agent = self._new_agent()
        agent.key = _key_of_time(self._random, agent.key.tenant_id, self._now_ms - age_ms)
        self._send(agent, "session_created", {"limits": SHORT})
        if age_ms <= _DAY_MS:  # else there is no such session
            self._agents[self._random.randrange(len(self._agents))] = agent

    def _make_call(self) -> None:
        """Send the events of a reserved call in their order, or none in time; ask for it again."""
        agent = self._crowd if self._random.random() < 0.7 else self._pick_agent()
        way: list[tuple[str, dict[str, Any]]] = CALL_WAY
        if self._random.random() < 0.4:
            event_type, fields = CALL_WAY[0]
            self._send(agent, event_type, {**fields, "idem_key": f"own-{self._made}", "limit_ms": 1})
            self._tick()
            self._tick()
            way = CALL_WAY[-1:]
        for event_type, fields in way:
            self._send(agent, event_type, {**fields, "idem_key": f"own-{self._made}"})

    def _send_agent_event(self) -> None:
        """Send an event of one of a session's agents, mostly of the session that never ends."""
        agent = self._crowd if self._random.random() < 0.7 else self._pick_agent()
        move = draw_agent_event(self._random, agent.key, self._row_of)
        self._send(agent, move.event_type, move.fields)
        if move.event_type == "agent_task_updated" and self._random.random() < 0.3:  # a task is done once
            done = {**move.fields, "task": f"task-{self._made}", "completed": True, "from_snapshot_id": None}
            for _ in range(2):
                self._send(agent, move.event_type, done)

    def _overfill(self) -> None:
        """Send one more of what a session has as many of as it may."""
        chance = self._random.random()
        if chance < 0.1:
            self._send(self._full_of_runs, "agent_registered", {"agent_id": f"more-{self._made}"})
        elif chance < 0.4:
            self._send(self._full_of_runs, "run_started", {"mode": "attached"}, run_id=f"more-{self._made}")
        elif chance < 0.67:
            self._send(self._full_of_children, "artifact_created", {"artifact_id": f"more-{self._made}"})
        else:
            self._send(self._full_of_producers, "session_activity", producer_id=f"more-{self._made}", producer_seq=1)

    def _send_large_content(self) -> None:
        """Send content that is kept apart from its row, or is too large for it."""
        if self._random.random() < _TOO_LARGE_SHARE:
            self._send(self._full_of_children, "state_updated", {"state_json": "é" * _TOO_LARGE_CHARS})
            self._recent.pop()  # too costly to repeat
        else:
            agent = self._random.choice((self._pick_agent(), self._crowd))
            self._send(agent, "state_updated", {"state_json": _LARGE_TEXT})

    def _lose_task(self) -> None:
        """Let a worker begin a task, and another one send its work, and take it over."""
        agent, run_id = self._crowd if self._random.random() < 0.5 else self._pick_agent(), f"task-{self._made}"
        self._send(agent, "run_queued", {"mode": "detached"}, run_id=run_id)
        self._send(agent, "run_started", {"mode": "detached", "plan_json": None}, run_id=run_id)
        for place, event_type in enumerate(("run_running", "run_paused", "run_resumed")):
            fields = {"progress": None} if event_type == "run_running" else {}
            second = {"producer_id": "second", "producer_seq": self._made + place}
            self._send(agent, event_type, fields, run_id=run_id, **second)
        self._send(agent, "run_running", {"progress": None}, run_id=run_id)
        self._send(agent, "run_cancelled", run_id=run_id)

    def _send_point_event(self) -> None:
        """Send an event of a checkpoint or a rollback, a snapshot's id again, or a transaction."""
        agent = self._crowd if self._random.random() < 0.7 else self._pick_agent()
        row, chance = self._state_of(agent), self._random.random()
        if row is None:
            self._tick()
        elif chance < 0.15:
            head = row.snapshot.snapshot_id
            self._send(agent, "snapshot_created", {"snapshot": snapshot(head, parent=head)})
        elif chance < 0.4:
            name = {"transaction_id": f"own-{self._made}"}
            versions = {"base_version": row.version, "new_version": row.version + 1}
            self._send(agent, "txn_begun", name)
            event_type = self._random.choice(("txn_committed", "txn_rolled_back"))
            for _ in range(2):  # it ends once
                self._send(agent, event_type, name | (versions if event_type == "txn_committed" else {}))
        elif chance < 0.65:
            versions = {"base_version": row.version, "new_version": row.version + 1}
            target = self._random.choice(("nowhere", row.snapshot.snapshot_id))
            self._send(agent, "session_rolled_back", {"snapshot_id": target, **versions})
        else:
            move = draw_point_event(self._random, row)
            self._send(agent, move.event_type, move.fields)

    def _end_many(self) -> None:
        """Create sessions that end on one day: their tombstones are packed together."""
        for agent in [self._new_agent() for _ in range(_ENDED_TOGETHER)]:
            self._send(agent, "session_created", {"limits": SHORT})
            self._send(agent, "session_start_failed", {"reason": "invalid_config"})

    def _release_twice(self) -> None:
        """Confirm the last clean-up of a session twice, if one of the agents has any."""
        for agent in self._random.sample(self._agents, len(self._agents)):
            row = self._state_of(agent)
            if row is not None and row.cleanups:
                done = [CleanupAction("close_connection", True, 1)]
                for _ in range(2):
                    self._send(
                        agent, "resources_released", {"cleanup_id": row.cleanups[-1].cleanup_id, "actions": done}
                    )
                return
        self._tick()

    def _begin_too_many(self) -> None:
        """Begin more transactions in a session that never ends than may be open."""
        agent = self._full_of_children
        row = self._state_of(agent)
        is_open = 0 if row is None else len(row.transactions)
        for number in range(TRANSACTIONS_MAX + 8 - is_open):
            self._send(agent, "txn_begun", {"transaction_id": f"more-{self._made}-{number}"})

    def _resume_too_late(self) -> None:
        """Let a run fail in a session that never ends, and days pass before it is resumed.

        Another one has a new plan, and is completed.
        """
        agent, done_id, run_id = self._full_of_children, f"done-{self._made}", f"late-{self._made}"
        self._send(agent, "run_started", {"mode": "attached", "plan_json": None}, run_id=done_id)
        self._send(agent, "run_running", {"progress": None}, run_id=done_id)
        for event_type in ("plan_recorded", "plan_replaced", "run_completed"):
            self._send(agent, event_type, run_id=done_id)
        self._send(agent, "run_started", {"mode": "attached", "plan_json": None}, run_id=run_id)
        self._send(agent, "run_running", {"progress": None}, run_id=run_id)
        self._send(agent, "run_failed", {"error": ERRORS[0]}, run_id=run_id)
        self._leap_ms = self._random.choice(_LEAPS_MS)
        for _ in range(_OUTAGE_GRACE_TICKS):
            self._tick()
        for _ in range(4):
            self._send(agent, "run_resumed", run_id=run_id)


def _key_of_time(random: Random, tenant: str, made_ms: int) -> SessionKey:
    """Return the key of a session of partition 0 whose id (of version 7) has a time."""
    while True:
        bits = made_ms << 80 | random.getrandbits(80)
        bits = bits & ~(0xF << 76 | 0b11 << 62) | 0x7 << 76 | 0b10 << 62
        key = SessionKey(tenant, str(UUID(int=bits)))
        if partition_of(key.encoded(), PARTITIONS) == 0:
            return key
