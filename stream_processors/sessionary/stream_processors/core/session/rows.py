"""Rows of sessions, and the tombstones that remain of archived ones; and their clocks."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from sessionary.schemas.codec import Decoder, encode_record, record_headers
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import SessionContent, SessionState, Tombstone, TombstoneChunk
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.clock import format_seconds
from sessionary.stream_processors.core.model import Decision, RowLookup
from sessionary.stream_processors.core.rows import RowKind, RowParts
from sessionary.stream_processors.core.session.accepted import end_transactions
from sessionary.stream_processors.core.session.children import change_open_runs
from sessionary.stream_processors.core.session.clocks import ANSWER, WAITING, SessionClock, earliest_due, repair_times
from sessionary.stream_processors.core.session.effects import SessionRow
from sessionary.stream_processors.core.session.facts import Buried, SessionFact, Transitioned
from sessionary.stream_processors.core.session.migration import facts_of_change, facts_of_expiry, open_migration
from sessionary.stream_processors.core.session.people import expired_answer, is_answer_new
from sessionary.stream_processors.core.session.row_size import (
    estimate_row_bytes,
    is_content_apart,
    join_content,
    split_content,
)
from sessionary.stream_processors.core.session.transitions import TRANSITIONS, Transition
from sessionary.stream_processors.core.session.values import REDELIVERY_MS_MAX, tombstone_end_ms

_CONTENT = RowParts(split_content, is_content_apart, join_content, record_headers(SessionContent))
TOMBSTONE_MS = REDELIVERY_MS_MAX


class SessionDeadline(NamedTuple):
    """When a session's earliest clock fires (ms of log time), and the transition it makes."""

    due_ms: int
    transition: Transition
    clock: SessionClock


class SessionRows:
    """Implements `Rows` for sessions."""

    def __init__(self, transitions: Sequence[Transition] = TRANSITIONS, tombstone_ms: int = TOMBSTONE_MS) -> None:
        """Take a table of transitions, and how long a tombstone remains (ms of log time)."""
        self.kinds: Sequence[RowKind] = (
            RowKind(
                SessionState,
                live=True,
                prefixes=record_headers(SessionState),
                encode=encode_record,
                parts=_CONTENT,
                label=attrgetter("state", "context_exceeded"),
            ),
            RowKind(
                Tombstone,
                live=False,
                prefixes=record_headers(Tombstone),
                encode=encode_record,
                expiry_ms=tombstone_end_ms,
            ),
            RowKind(TombstoneChunk, live=False, prefixes=record_headers(TombstoneChunk), encode=encode_record),
        )
        self._clocked = _clocks_by_state(transitions)
        self._clocks = {state: tuple(clock for _, clock in pairs) for state, pairs in self._clocked.items()}
        self._tombstone_ms = tombstone_ms
        self._decoder = Decoder()

    def decode(self, value: bytes) -> SessionRow | TombstoneChunk:
        """Return a session, a tombstone or a chunk of them. Raises `DecodeError`."""
        row = self._decoder.decode_record(value)
        if not isinstance(row, (SessionState, Tombstone, TombstoneChunk)):
            raise DecodeError("unknown_schema", f"a {type(row).__name__} is no row")
        return row

    def estimate_bytes(self, row: SessionRow | TombstoneChunk) -> int:
        """Return about how many bytes a row takes in the changelog."""
        return estimate_row_bytes(row)

    def due_ms(self, row: SessionRow | TombstoneChunk, outage_end_ms: int = 0) -> int:
        """Return a session's earliest deadline, or a tombstone's end (ms of log time)."""
        if not isinstance(row, SessionState):
            return row.expires_at
        due_ms, _ = earliest_due(self._clocks[row.state], row, outage_end_ms)
        migration = open_migration(row)
        return due_ms if migration is None else min(due_ms, migration.expires_at)

    def repair_times(self, row: SessionRow, repairs: Sequence[ClockRepair]) -> SessionRow:
        """Return a session with its times as they are after repairs of the partition's clock."""
        return repair_times(row, repairs) if isinstance(row, SessionState) else row

    def is_only_postponed(self, row: SessionRow, after: SessionRow) -> bool:
        """Return True within Active: there limits are fixed, and every clock only moves forward.

        But a turn begins or ends with other clocks. The time of a migration begins when it is
        offered. The clocks that leave an answer some time end this with what is heard next.
        """
        return (
            type(row) is SessionState
            and row.state == "Active"
            and getattr(after, "state", "") == "Active"
            and row.migration is getattr(after, "migration", None)
            and (row.phase == WAITING) == (getattr(after, "phase", None) == WAITING)
            and not (row.answers and is_answer_new(row))
        )

    def deadline(self, state: SessionState, outage_end_ms: int = 0) -> SessionDeadline:
        """Return the earliest deadline. Every state has one; of equal ones the first clock wins.

        The clocks of activity start at `outage_end_ms` (ms of log time) at the earliest.
        """
        due_ms, place = earliest_due(self._clocks[state.state], state, outage_end_ms)
        return SessionDeadline(due_ms, *self._clocked[state.state][place])

    def fire(self, key: bytes, row: SessionRow, rows: RowLookup, now_ms: int, outage_end_ms: int = 0) -> Decision:
        """Return the transition that the session's deadline makes; the reason names the limit.

        If a migration is due no later, it is the migration's end.
        """
        assert isinstance(row, SessionState)
        due_ms, transition, clock = self.deadline(row, outage_end_ms)
        migration = open_migration(row)
        if migration is not None and migration.expires_at <= due_ms:
            return Decision(facts_of_expiry(migration, now_ms))
        reason = clock.reason.format(limit=format_seconds(clock.limit_ms(row)))
        fact = Transitioned(transition, now_ms, clock.reason_code, reason, due_ms=due_ms)
        if clock is ANSWER and row.question is not None:
            fact = fact._replace(answer=expired_answer(row.question))
        if transition.target == "Archived":
            return Decision((fact, Buried(now_ms + self._tombstone_ms)))
        facts: list[SessionFact] = [*end_transactions(row, fact, now_ms), fact]
        if migration is not None:
            facts += facts_of_change(row, fact, now_ms)
        runs = change_open_runs(row, fact, rows)
        return Decision((*facts, *runs.facts), writes=runs.writes)


def _clocks_by_state(transitions: Sequence[Transition]) -> Mapping[str, Sequence[tuple[Transition, SessionClock]]]:
    clocked: dict[str, list[tuple[Transition, SessionClock]]] = {}
    for transition in transitions:
        for clock in transition.clocks:
            clocked.setdefault(f"{transition.source}", []).append((transition, clock))
    return clocked
