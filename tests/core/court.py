"""A partition's fold and the auditor hear the same records; after each they have to agree in every detail."""

from typing import Any

from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import LogRecord, Outcome
from sessionary.stream_processors.core.partition import PartitionState
from tests.auditor.account import Account, differences
from tests.auditor.reading import LogEntry, Row
from tests.support.machines import MACHINES, STREAMS
from tests.support.scribe import TICK, Scribe

SETTINGS = PartitionSettings("sessionary.events", 1)
START_MS = 1_700_000_000_000
DECODER = Decoder()


def as_row(state: SessionState) -> Row:
    """What the auditor, too, keeps of a session."""
    return {
        "tenant": state.tenant_id,
        "session": state.session_id,
        "owner": state.owner_service,
        "state": state.state,
        "phase": state.phase,
        "epoch": state.epoch,
        "version": state.version,
        "audit_seq": state.audit_seq,
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
        "producers": {
            ledger.producer_id: {"last": ledger.last_seq, "missing": [tuple(hole) for hole in ledger.missing]}
            for ledger in state.producers
        },
        "cleanups": {cleanup.cleanup_id: cleanup.released for cleanup in state.cleanups},
        "refusals": [(refusal.offset, refusal.reason) for refusal in state.refusals],
        "context_exceeded": state.context_exceeded,
        "late_epoch": state.late_epoch,
    }


def said(outcome: Outcome) -> str:
    """What became of a batch's single record, in the auditor's words."""
    counts = outcome.counts
    assert counts.applied + counts.duplicate + counts.refused + counts.ticks == 1
    if counts.refused:
        ((_, rejected),) = outcome.records_on("rejected")
        return f"refused {rejected.reason}"
    return "applied" if counts.applied else "duplicate" if counts.duplicate else "tick"


class Court:
    """Both sides, the log so far, and a clock to set the next record's append time."""

    def __init__(self, settings: PartitionSettings = SETTINGS, partition: int = 0) -> None:
        self.partition = partition
        self.fold = PartitionState(partition, settings, DECODER, MACHINES)
        self.fold.finish_loading()
        self.account = Account(settings.partitions)
        self.log: list[LogRecord] = []
        self.outcomes: list[Outcome] = []
        self.at = START_MS

    @property
    def book(self) -> Any:
        return self.account.books[self.partition]

    def hear(self, key: bytes | None, value: bytes | None) -> str:
        """Append a record and let both judge it; fails where they differ."""
        record = LogRecord(len(self.log), self.at, key, value)
        self.log.append(record)
        batch = self.fold.begin()
        assert batch.apply(record)
        outcome = batch.finish()
        self.fold.merge(batch)
        self.outcomes.append(outcome)
        for lines in ("audits", "rejected", "cleanups"):
            getattr(self.book, lines).clear()
        expected = self.account.feed(LogEntry(self.partition, record.offset, record.timestamp_ms, key, value))
        assert said(outcome) == expected
        audits, rejected, cleanups = ([line._asdict() for _, line in outcome.records_on(stream)] for stream in STREAMS)
        found = differences(self.account, audits, rejected, cleanups)
        assert not found, found
        self._compare_rows(outcome)
        return expected

    def _compare_rows(self, outcome: Outcome) -> None:
        book, rows = self.book, self.fold.rows
        assert {key for key, row in rows.items() if isinstance(row, SessionState)} == set(book.rows)
        assert {key for key, row in rows.items() if not isinstance(row, SessionState)} == set(book.graves)
        for key in outcome.rows:
            row = rows.get(key)
            if isinstance(row, SessionState):
                ours, theirs = as_row(row), dict(book.rows[key])
                if row.state != "Active":  # the activity clocks stand still, and their start tells nothing
                    for name in ("last_event_at", "last_work_at"):
                        del ours[name], theirs[name]
                assert {n: (v, theirs[n]) for n, v in ours.items() if v != theirs[n]} == {}
            elif row is not None:
                assert (row.audit_seq, row.epoch) == (book.graves[key]["audit_seq"], book.graves[key]["epoch"])
                assert row.expires_at == book.graves[key]["expires_at"]
        assert self.fold.next_deadline_ms == book.standing()
        assert (outcome.position.clock_ms, outcome.position.quiet_until_ms) == (book.now, book.quiet_until)
        assert outcome.position.next_offset == len(self.log)

    # Conveniences for stories

    def says(self, scribe: Scribe, event_type: str, envelope: dict[str, Any] | None = None, **fields: Any) -> str:
        """The agent sends an event; it learns its epoch as one that waits for the verdict does."""
        outcome = self.hear(scribe.key.encoded(), scribe.writes(event_type, envelope, **fields))
        row = self.book.rows.get(scribe.key.encoded())
        if row is not None:
            scribe.epoch = row["epoch"]
        return outcome

    def tick(self) -> str:
        return self.hear(None, TICK)

    def passes(self, ms: int, *, step_ms: int = 1_000) -> list[str]:
        """Let time pass with a tick a second; return the audit lines that came of it, as `T06 inactive`."""
        told: list[str] = []
        until = self.at + ms
        while self.at < until:
            self.at = min(until, self.at + step_ms)
            self.tick()
            told += [f"{line.transition} {line.reason_code}" for _, line in self.outcomes[-1].records_on("audit")]
        return told

    def row(self, scribe: Scribe) -> SessionState:
        row = self.fold.rows[scribe.key.encoded()]
        assert isinstance(row, SessionState)
        return row

    def starts(self, scribe: Scribe, **created: Any) -> None:
        """Bring a session to Active."""
        for event_type, fields in (
            ("session_created", created),
            ("session_phase_changed", {"phase": "validating"}),
            ("session_phase_changed", {"phase": "connecting"}),
            ("session_started", {}),
        ):
            assert self.says(scribe, event_type, **fields) == "applied"

    def last_audits(self) -> list[Any]:
        return [line for _, line in self.outcomes[-1].records_on("audit")]
