"""Feeds the same records to a partition's fold and to the oracle; both must agree after each."""

from typing import Any, Literal

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.ids import run_key
from sessionary.schemas.records import (
    AgentState,
    ArtifactState,
    CheckpointState,
    EndedToolCall,
    FinishedRun,
    MessageState,
    Position,
    RulesActivation,
    RunState,
    SessionState,
    StepState,
    TimedStep,
    Tombstone,
    TombstoneChunk,
    ToolCallState,
)
from sessionary.schemas.types import AnnouncedRules, Migration
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import BatchResult, ClockSetting, LogRecord, SkippedOffsets
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.tombstones import ChunkSizes, hash_key, key_hashes, split_hashes
from tests.auditor.decoding import Decision, LogEntry, Row, decisions_of, run_grave_hashes
from tests.auditor.oracle import Oracle, find_differences
from tests.auditor.people_model import people_of
from tests.auditor.table_rows import (
    SAME_OF_CHILDREN,
    SAME_OF_RUNS,
    agent_summary,
    checkpoint_summary,
    found_row,
    run_kind,
    wanted_rows,
)
from tests.support.event_factory import TICK, EventFactory
from tests.support.judges import JUDGE, STREAMS
from tests.support.second_rules import SECOND_RULES
from tests.support.signing import KEYS, Headers, with_signature
from tests.support.values import as_json

# Tombstones are packed in twos, so that few sessions reach all of that.
SETTINGS = PartitionSettings("sessionary.events", 1, chunk_sizes=ChunkSizes(chunk_keys=2, chunks_merged=2), keys=KEYS)
START_MS = 1_700_000_000_000
DECODER = Decoder()
ChildRow = (
    StepState | TimedStep | ToolCallState | EndedToolCall | ArtifactState | MessageState | AgentState | CheckpointState
)
SkipType = Literal["records_skipped", "log_gap_accepted", "log_truncation_accepted"]
FIRST_POSITION = Position(0, 0, 0, 0, 0)
# Other rules begin with the first record that says so.
ANNOUNCING = FIRST_POSITION._replace(announced=AnnouncedRules(*SECOND_RULES, from_offset=0, principal="ops"))


def oracle_row(state: SessionState) -> Row:
    """Return a session's state in the oracle's form."""
    return {
        "tenant": state.tenant_id,
        "session": state.session_id,
        "owner": state.owner_service,
        "agent": state.agent_id,
        "holder": state.holder,
        "owner_heard": state.owner_heard_at,
        "state": state.state,
        "phase": state.phase,
        "epoch": state.epoch,
        "version": state.version,
        "turns": state.turns,
        "agents": {agent.agent_id: tuple(agent) for agent in state.agents},
        "shared_results": state.shared_results,
        "transactions": [tuple(each) for each in state.transactions],
        "audit_seq": state.audit_seq,
        "open_runs": [run_key(state.tenant_id, state.session_id, run.run_id) for run in state.open_runs],
        "limits": state.limits._asdict(),
        "created_at": state.created_at,
        "entered_at": state.entered_at,
        "last_event_at": state.last_event_at,
        "last_work_at": state.last_work_at,
        "max_due_at": state.max_due_at,
        "released_at": state.released_at,
        "attempts": state.recovery_attempts,
        "error_class": state.error_class,
        "state_json": state.state_json,
        "head": state.snapshot.snapshot_id,
        "migration": state.migration and oracle_migration(state.migration),
        "whole": as_json(state.snapshot),
        "holder_epoch": state.holder_epoch,
        "exchanges": state.exchanges,
        "turn_by": state.turn_by,
        "claim": state.quota and (state.quota.offset, state.quota.granted),
        **people_of(state.question, state.answers, state.hold),
        "producers": {
            ledger.producer_id: {
                "last": ledger.last_seq,
                "missing": [tuple(gap) for gap in ledger.missing],
                "epoch": ledger.epoch,
                "at": ledger.last_at,
                "unsure": ledger.inexact_to,
            }
            for ledger in state.producers
        },
        "forgotten": {entry.id_hash: (entry.last_seq, entry.epoch) for entry in state.forgotten},
        "cleanups": {cleanup.cleanup_id: cleanup.released for cleanup in state.cleanups},
        "rejections": [(rejection.offset, rejection.reason) for rejection in state.rejections],
        "context_exceeded": state.context_exceeded,
        "last_tool": state.last_tool,
        "last_result": state.last_result,
        "late_epoch": state.late_epoch,
        "fenced": state.fenced_beats and (state.fenced_beats.epoch, tuple(state.fenced_beats.id_hashes)),
    }


def oracle_migration(migration: Migration) -> Row:
    """Return a migration in the oracle's form."""
    return {
        "id": migration.migration_id,
        "target": migration.target_service,
        "step": migration.step,
        "ttl": migration.ttl_ms,
        "misses": migration.mismatches,
        "at": migration.offered_at,
        "from": migration.from_state,
        "why": migration.reason_code,
    }


def child_row(row: ChildRow) -> Row:
    """Return a child in the oracle's form."""
    kind, fields = type(row).__name__, row._asdict()
    if kind == "AgentState":
        return {"kind": kind, **agent_summary(fields)}
    if kind == "CheckpointState":
        return {"kind": kind, **checkpoint_summary(fields)}
    error = fields.get("error")
    fields |= {"kind": kind, "error": error and error._asdict()}
    return {name: fields[name] for name in ("kind", *SAME_OF_CHILDREN[kind])}


def compared_children(fold: PartitionState, oracle: Any) -> list[str]:
    """Return how a partition's runs and their children differ from the oracle's."""
    ours, theirs = {}, wanted_rows(oracle)
    for key, stored in fold.rows.items():
        row = fold.repair_times(stored, fold.position.clock_repairs)
        if isinstance(row, ChildRow):
            ours[key] = child_row(row)
        elif isinstance(row, RunState | FinishedRun):
            ours[key] = found_row(type(row).__name__, row._asdict())
    wanted = {key: row for key, row in theirs.items() if row["kind"] != "SessionState"}
    keys = sorted(key for key in ours.keys() | wanted.keys() if ours.get(key) != wanted.get(key))
    return [f"the row under {key!r} is {ours.get(key)}, not {wanted.get(key)}" for key in keys]


def _without_ids(ledger: Row) -> Row:
    return {name: value for name, value in ledger.items() if name != "ids"}


def outcome_text(outcome: BatchResult) -> str:
    """Return the outcome of a batch of one record in the oracle's words, as `rejected late`."""
    counts = outcome.counts
    assert counts.records == 1
    if counts.fenced_beats:
        return "fenced beat"
    if counts.rejected:
        ((_, rejected),) = outcome.records_on("rejected")
        return f"rejected {rejected.reason}"
    return "applied" if counts.applied else "duplicate" if counts.duplicate else "tick"


class OracleRig:
    """A fold, an oracle and the log so far; `at` is the next record's append time in ms."""

    def __init__(
        self, settings: PartitionSettings = SETTINGS, partition: int = 0, position: Position = FIRST_POSITION
    ) -> None:
        """`position` says which rules are in force before the first record, or are announced."""
        self.partition, self.first_position = partition, position
        self.fold = PartitionState(partition, settings, DECODER, JUDGE)
        self.fold.load_position(position)
        self.fold.finish_loading()
        self.all_partitions = Oracle(settings.partitions)
        self.oracle.rules, self.oracle.quotas = position.rules.version, position.rules.quotas
        self.oracle.session_quotas, self.oracle.resume_ms = position.rules.session_quotas, position.rules.resume_ms
        self.oracle.token_quotas = position.rules.token_quotas
        if (announced := position.announced) is not None:
            self.oracle.announced = Decision(
                *(0, announced.from_offset, "rules_announced", announced.version),
                quotas=announced.quotas,
                session_quotas=announced.session_quotas,
                resume_ms=announced.resume_ms,
                token_quotas=announced.token_quotas,
            )
        self.log: list[LogRecord] = []
        self.missing = 0  # offsets that the log lost
        self.outcomes: list[BatchResult] = []
        self.at = START_MS

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return len(self.log) + self.missing

    @property
    def oracle(self) -> Any:
        return self.all_partitions.partitions[self.partition]

    def append(self, key: bytes | None, value: bytes | None, headers: Headers = ()) -> str:
        """Append a record, let both sides judge it, and fail if they differ.

        What only a server role may write is signed.
        """
        return self.forge(key, value, with_signature(key, value, headers))

    def forge(self, key: bytes | None, value: bytes | None, headers: Headers = ()) -> str:
        """Append a record with just these headers."""
        record = LogRecord(self.next_offset, self.at, key, value, headers)
        self.log.append(record)
        batch = self.fold.begin()
        assert batch.apply(record)
        outcome = batch.finish()
        self.fold.merge(batch)
        self.outcomes.append(outcome)
        for lines in ("audits", "rejected", "cleanups", "tasks", "migrations", "notices"):
            getattr(self.oracle, lines).clear()
        expected = self.all_partitions.apply_record(
            LogEntry(self.partition, record.offset, record.timestamp_ms, key, value, headers)
        )
        assert outcome_text(outcome) == expected
        written = ([line._asdict() for _, line in outcome.records_on(stream)] for stream in STREAMS)
        found = find_differences(self.all_partitions, *written)
        assert not found, found
        assert sorted(line for _, line in outcome.records_on("quotas")) == sorted(self.oracle.notices)
        for stream in (*STREAMS, "quotas"):
            counted = outcome.counts.audited if stream == "audit" else getattr(outcome.counts, stream)
            assert counted == len(outcome.records_on(stream)), stream
        self._compare_rows(outcome)
        return expected

    def _compare_rows(self, outcome: BatchResult) -> None:
        oracle, rows = self.oracle, self.fold.rows
        assert {key for key, row in rows.items() if isinstance(row, SessionState)} == set(oracle.rows)
        runs = {key: row for key, row in rows.items() if isinstance(row, RunState | FinishedRun)}
        assert set(runs) == set(oracle.runs)
        children = {key for key, row in rows.items() if isinstance(row, ChildRow)}
        assert children == set(oracle.children)
        run_graves = {part for key in oracle.run_graves for part in run_grave_hashes(key)}
        again = {part for key in oracle.runs for part in run_grave_hashes(key)}
        assert self.tombstones() - again == ({*map(hash_key, oracle.graves)} | run_graves) - again
        for key in outcome.rows:
            row = rows.get(key)
            if isinstance(row, SessionState):
                ours, theirs = oracle_row(row), dict(oracle.rows[key])
                # The fold has hashes of event ids; what they decide is compared.
                theirs["producers"] = {name: _without_ids(ledger) for name, ledger in theirs["producers"].items()}
                if row.state != "Active":  # the activity clocks are off
                    for name in ("last_event_at", "last_work_at"):
                        del ours[name], theirs[name]
                assert {n: (v, theirs[n]) for n, v in ours.items() if v != theirs[n]} == {}
            elif isinstance(row, RunState | FinishedRun):
                theirs = oracle.runs[key]
                ours = {name: getattr(row, name) for name in SAME_OF_RUNS}
                assert {n: (v, theirs[n]) for n, v in ours.items() if v != theirs[n]} == {}
                assert type(row).__name__ == run_kind(theirs)
            elif isinstance(row, ChildRow):
                assert child_row(row) == {name: oracle.children[key][name] for name in child_row(row)}
            elif isinstance(row, Tombstone):
                assert (row.audit_seq, row.epoch) == (oracle.graves[key]["audit_seq"], oracle.graves[key]["epoch"])
                assert row.expires_at == oracle.graves[key]["expires_at"]
        assert self.fold.next_deadline_ms == oracle.next_deadline()
        assert (outcome.position.clock_ms, outcome.position.outage_grace_until_ms) == (
            oracle.now,
            oracle.outage_grace_until,
        )
        assert outcome.position.next_offset == self.next_offset

    def tombstones(self) -> set[bytes]:
        """Return the hashes of the tombstones that are not over, packed or not."""
        found: set[bytes] = set()
        now_ms = self.fold.position.clock_ms
        for key, row in self.fold.rows.items():
            ends_ms = self.fold.expiry_ms(row)
            if isinstance(row, TombstoneChunk) and row.expires_at > now_ms:
                found |= {*split_hashes(row.key_hashes)}
            elif ends_ms is not None and ends_ms > now_ms:
                found |= {*key_hashes(key)}
        return found

    # Helpers for tests

    def send(self, agent: EventFactory, event_type: str, envelope: dict[str, Any] | None = None, **fields: Any) -> str:
        """Send an agent's event; it then knows its epoch, as if it had waited for the verdict."""
        outcome = self.append(agent.key.encoded(), agent.event_bytes(event_type, envelope, **fields))
        row = self.oracle.rows.get(agent.key.encoded())
        if row is not None:
            agent.epoch, agent.head = row["epoch"], row["head"]
        return outcome

    def tick(self) -> str:
        return self.append(None, TICK)

    def begin_rules(self) -> str:
        """Append the record with which the announced rules begin."""
        announced = self.fold.position.announced
        assert announced is not None
        return self.append(None, encode_record(RulesActivation(*announced.rules, announced.principal, "w1")))

    def set_clock(self, *, until_offset: int = 0) -> BatchResult:
        """Set both sides' clocks to `at`; records below `until_offset` do not move them."""
        batch = self.fold.begin()
        batch.set_clock(ClockSetting(self.at, until_offset, "it leapt", "alice"))
        outcome = batch.finish()
        self.fold.merge(batch)
        self.oracle.audits.clear()
        [decision] = decisions_of(line._asdict() for _, line in outcome.records_on("audit"))
        self.oracle.decisions.append(decision)
        self.oracle.take_decisions(decision.offset)
        assert self.fold.next_deadline_ms == self.oracle.next_deadline()
        return outcome

    def skip(
        self,
        event_type: SkipType,
        *records: tuple[bytes | None, bytes | None],
        clock_ms: int = 0,
        missing: int = 0,
    ) -> BatchResult:
        """Append records that both sides leave unfolded, as an operator decided.

        `missing`: so many offsets after them have no record.
        """
        first = self.next_offset
        skipped = [LogRecord(first + n, self.at, *record) for n, record in enumerate(records)]
        self.log += skipped
        self.missing += missing
        batch = self.fold.begin()
        batch.skip_offsets(SkippedOffsets(event_type, self.next_offset, clock_ms, "poison", "alice", skipped))
        outcome = batch.finish()
        self.fold.merge(batch)
        self.outcomes.append(outcome)
        for lines in ("audits", "rejected", "cleanups", "tasks", "migrations"):
            getattr(self.oracle, lines).clear()
        self.oracle.decisions += decisions_of(line._asdict() for _, line in outcome.records_on("audit"))
        for record in skipped:
            self.all_partitions.apply_record(LogEntry(self.partition, *record[:4]))
        self.oracle.take_decisions(first)
        written = ([line._asdict() for _, line in outcome.records_on(stream)] for stream in STREAMS)
        assert find_differences(self.all_partitions, *written) == []
        assert self.fold.next_deadline_ms == self.oracle.next_deadline()
        return outcome

    def advance(self, ms: int, *, step_ms: int = 1_000) -> list[str]:
        """Let time pass with a tick every `step_ms`; return new audit lines, as `T06 inactive`."""
        lines: list[str] = []
        until = self.at + ms
        while self.at < until:
            self.at = min(until, self.at + step_ms)
            self.tick()
            lines += [f"{line.transition} {line.reason_code}" for _, line in self.outcomes[-1].records_on("audit")]
        return lines

    def row_of(self, agent: EventFactory) -> SessionState:
        row = self.fold.rows[agent.key.encoded()]
        assert isinstance(row, SessionState)
        return row

    def start(self, agent: EventFactory, **created: Any) -> None:
        """Bring a session to Active; `created` are fields of its first event."""
        for event_type, fields in (
            ("session_created", created),
            ("session_phase_changed", {"phase": "validating"}),
            ("session_phase_changed", {"phase": "connecting"}),
            ("session_started", {}),
        ):
            assert self.send(agent, event_type, **fields) == "applied"

    def last_audits(self) -> list[Any]:
        return [line for _, line in self.outcomes[-1].records_on("audit")]
