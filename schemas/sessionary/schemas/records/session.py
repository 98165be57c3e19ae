"""The changelog's records of sessions and of the partition; times are ms of log time."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.parts.agent import SessionAgent
from sessionary.schemas.parts.fencing import FencedBeats
from sessionary.schemas.parts.migration import Migration
from sessionary.schemas.parts.quota import SessionQuota
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import (
    AnnouncedRules,
    Answer,
    Cleanup,
    ClockRepair,
    DataClass,
    ErrorClass,
    ForgottenProducer,
    OpenRun,
    PartitionDecision,
    Phase,
    ProducerLedger,
    Question,
    Refusal,
    RuleSet,
    SessionLimits,
    SessionStateName,
    Snapshot,
)


class SessionState(NamedTuple):
    """The state of a session, as the changelog has it."""

    tenant_id: str
    session_id: str
    user_id: str | None
    agent_id: str
    owner_service: str
    state: SessionStateName
    phase: Phase | None
    epoch: int
    version: int
    reason_code: str
    limits: SessionLimits
    created_at: int  # Log time, ms; so are all times here
    entered_at: int  # When this state was entered
    last_event_at: int
    last_work_at: int
    max_due_at: int | None  # When the maximum duration ends; in Paused: the time that is left
    released_at: int | None
    recovery_attempts: int
    error_class: ErrorClass | None
    state_schema_version: int
    state_json: str
    snapshot: Snapshot
    audit_seq: int
    data_classes: Sequence[DataClass]
    context_bytes: int | None
    context_exceeded: bool
    late_epoch: int  # The last epoch whose lateness was audited
    producers: Sequence[ProducerLedger] = ()
    refusals: Sequence[Refusal] = ()  # The last 16
    cleanups: Sequence[Cleanup] = ()
    parent_session_id: str | None = None
    restored_from_snapshot_id: str | None = None
    forgotten: Sequence[ForgottenProducer] = ()  # Oldest first
    content_apart: bool = False  # state_json and snapshot are in a SessionContent, and empty here
    holder: str = ""  # Producer id of the client that created it or took it over last
    owner_heard_at: int = 0  # Last event of the owning service, heartbeats included
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include
    open_runs: Sequence[OpenRun] = ()  # In the order in which they began
    turns: int = 0  # The number of the conversation's last turn
    migration: Migration | None = None  # The last one, open or not
    holder_epoch: int = 0  # The last that a client's event has given; the holder goes on from it
    question: Question | None = None  # That the session waits with
    answer: Answer | None = None  # How its last question ended
    agents: Sequence[SessionAgent] = ()  # In the order in which they were registered
    shared_results: int = 0  # How many results the agents have shared
    fenced_beats: FencedBeats | None = None  # None if there were none
    quota: SessionQuota | None = None  # The claim that it waits with, or holds; None if it needs none


class SessionContent(NamedTuple):
    """A session's content, if it is large; a record of its own beside the session's state.

    Its key is the session's, a zero byte and `content`. It is written only if it changes.
    """

    state_json: str
    snapshot: Snapshot


class Gravestone(NamedTuple):
    """What is kept of an archived session until no event of it can be delivered again."""

    tenant_id: str
    session_id: str
    producers: Sequence[ProducerLedger]
    reason_code: str
    epoch: int
    audit_seq: int
    expires_at: int  # Log time, ms


class GravestoneChunk(NamedTuple):
    """Gravestones that vanish at the same time, packed."""

    expires_at: int  # Log time, ms; the end of a day (UTC)
    key_hashes: bytes  # 16 bytes for each key, sorted: its BLAKE2b hash of that length


class Position(NamedTuple):
    """A partition's position: the next offset to read, whatever the group has committed."""

    next_offset: int
    clock_ms: int
    quiet_until_ms: int
    batch_number: int
    outcome_n: int  # Outcomes of next_offset that are written already; above 0 if its timers filled a batch
    previous_acknowledged_at: int | None = None  # µs since the epoch
    rules: RuleSet = NEWEST_RULES  # that next_offset is judged by
    announced: AnnouncedRules | None = None  # rules that are to begin
    leader_epoch: int | None = None  # of the leader that appended the last record below next_offset
    row_count: int | None = None  # the partition's rows; contents that are apart count as well
    row_checksum: int | None = None  # sum of their CRC-32 modulo 2**63
    clock_repairs: Sequence[ClockRepair] = ()  # of the partition's clock; oldest first
    decisions: Sequence[PartitionDecision] = ()  # the last eight about the partition; oldest first
