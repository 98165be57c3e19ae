"""The auditor can fail: what the processor's fold really says passes, and each thing bent in it is complained of."""

import ast
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tests.auditor
from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import BatchRecord
from sessionary.schemas.types import CleanupAction, Limits
from tests.auditor import checks
from tests.auditor.checks import audited, worked_out
from tests.auditor.evidence import OUTPUTS, Evidence, Life, compacted, read_journals
from tests.auditor.reading import LogEntry, No, Row, read, unpacked
from tests.core.court import START_MS, Court
from tests.support.scribe import Scribe

BRIEF = Limits(model_ms=1_000, tool_ms=1_000, network_ms=1_000, grace_ms=1_000, override=True)
POSITION_KEY = b"\x00position"


def played() -> tuple[Court, list[Scribe]]:
    """A session that times out and ends, one that works and ends, one that lives on; a refusal, a duplicate."""
    court = Court()
    silent, busy, living = (Scribe(name) for name in ("silent", "busy", "living"))
    court.starts(silent, limits=BRIEF)
    court.starts(busy)
    court.starts(living)
    court.says(busy, "session_activity")
    court.hear(court.log[-1].key, court.log[-1].value)  # the same once more
    court.says(busy, "session_recovered")  # illegal
    court.says(busy, "session_terminated", reason="completed")
    (cleanup_id,) = court.book.rows[busy.key.encoded()]["cleanups"]
    court.says(busy, "resources_released", cleanup_id=cleanup_id, actions=[CleanupAction("close_connection", True, 1)])
    court.passes(6_000)
    court.says(living, "session_activity")
    return court, [silent, busy, living]


def evidence_of(court: Court) -> Evidence:
    """What the topics, the tables and the journals would hold, had a processor written what the fold said."""
    log = [LogEntry(0, record.offset, record.timestamp_ms, record.key, record.value) for record in court.log]
    outputs: dict[str, list[tuple[LogEntry, Row]]] = {name: [] for name in OUTPUTS}
    for number, outcome in enumerate(court.outcomes, 1):
        counts, offset = outcome.counts, outcome.position.next_offset - 1
        batch = BatchRecord(
            *(0, number, offset, offset, counts.applied, counts.duplicate, counts.refused),
            *(len(outcome.audits), counts.timers, counts.ticks, START_MS * 1_000, None, "w1"),
        )
        written: dict[str, Any] = {"audit": outcome.audits, "rejected": outcome.rejected, "cleanup": outcome.cleanups}
        for name, records in (*written.items(), ("batches", [(None, batch)])):
            for key, record in records:
                value = encode_record(record)
                entry = LogEntry(0, len(outputs[name]), START_MS, key, value)
                outputs[name].append((entry, unpacked(value)[1]))
    changes = [
        *((key, encode_record(row)) for key, row in court.fold.rows.items()),
        (POSITION_KEY, encode_record(court.outcomes[-1].position)),
    ]
    table, positions = compacted(LogEntry(0, n, START_MS, key, value) for n, (key, value) in enumerate(changes))
    return Evidence(1, log, outputs, table, positions, _journal(log), _rows(log, outputs))


def _journal(log: list[LogEntry]) -> list[Row]:
    lines = []
    for entry in log:
        try:
            kind, fields = read(entry.value)
        except No:
            continue
        if kind != "tick":
            names = ("event_id", "event_type", "tenant_id", "session_id", "producer_id", "producer_seq")
            line = {name: fields["envelope"][name] for name in names}
            lines.append({**line, "partition": 0, "offset": entry.offset, "error": None, "file": "journal"})
    return lines


def _rows(log: list[LogEntry], outputs: dict[str, list[tuple[LogEntry, Row]]]) -> dict[str, list[Row]]:
    def place(entry: LogEntry) -> Row:
        return {"partition": entry.partition, "offset": entry.offset}

    rows = {name: [{**fields, **place(entry)} for entry, fields in told] for name, told in outputs.items()}
    digests = (hashlib.md5(entry.value or b"", usedforsecurity=False).hexdigest() for entry in log)
    return {**rows, "history": [{**place(entry), "digest": digest} for entry, digest in zip(log, digests, strict=True)]}


def complaints(evidence: Evidence) -> set[str]:
    return {difference.kind for difference in audited(worked_out(evidence))}


@pytest.fixture(scope="module")
def sound() -> Evidence:
    return evidence_of(played()[0])


def without(told: list[Any], n: int) -> list[Any]:
    return [*told[:n], *told[n + 1 :]]


def bent_output(evidence: Evidence, name: str, bend: Callable[[list[Any]], list[Any]]) -> Evidence:
    return evidence._replace(outputs={**evidence.outputs, name: bend(evidence.outputs[name])})


def bent_rows(evidence: Evidence, name: str, bend: Callable[[list[Row]], list[Row]]) -> Evidence:
    return evidence._replace(rows={**evidence.rows, name: bend(evidence.rows[name])})


def test_what_is_sound_passes(sound: Evidence) -> None:
    assert audited(worked_out(sound)) == []
    audits = [line for _, line in sound.outputs["audit"]]
    assert sum(line["fired_at"] is not None for line in audits) >= 2
    assert sum(line["kind"] == "refusal" for line in audits) == 1
    assert len(sound.table) == 3


@pytest.mark.parametrize("name", ["audit", "rejected", "cleanup", "batches"])
def test_an_output_that_is_missing_doubled_or_altered(sound: Evidence, name: str) -> None:
    for n in range(len(sound.outputs[name])):
        assert complaints(bent_output(sound, name, lambda told, n=n: without(told, n))), n  # type: ignore[misc]
        assert complaints(bent_output(sound, name, lambda told, n=n: [*told, told[n]])), n  # type: ignore[misc]
    altered = {"audit": "to_state", "rejected": "reason", "cleanup": "actions", "batches": "applied"}[name]

    def alter(told: list[tuple[LogEntry, Row]]) -> list[tuple[LogEntry, Row]]:
        entry, fields = told[0]
        return [(entry, {**fields, altered: "another"}), *told[1:]]

    assert complaints(bent_output(sound, name, alter))


@pytest.mark.parametrize("name", ["history", "audit", "rejected", "batches"])
def test_a_row_that_is_missing_doubled_altered_or_nobodys(sound: Evidence, name: str) -> None:
    column = {"history": "digest", "audit": "audit_id", "rejected": "reason", "batches": "number"}[name]
    assert complaints(bent_rows(sound, name, lambda rows: without(rows, 0))) == {"lost"}
    assert complaints(bent_rows(sound, name, lambda rows: [*rows, rows[-1]])) == {"doubled"}
    assert complaints(bent_rows(sound, name, lambda rows: [{**rows[0], column: "x"}, *rows[1:]])) == {"rows"}
    assert complaints(bent_rows(sound, name, lambda rows: [*rows, {**rows[0], "offset": 999}])) == {"rows"}
    assert complaints(sound._replace(dead_letters=1)) == {"rows"}


def test_a_journalled_event_that_the_log_does_not_hold(sound: Evidence) -> None:
    line = sound.journal[3]
    assert complaints(sound._replace(journal=[*sound.journal, {**line, "offset": 9_999}])) == {"lost"}
    assert complaints(sound._replace(journal=[*sound.journal, {**line, "event_id": "another"}])) == {"lost"}
    unplaced = {**line, "offset": None}
    assert complaints(sound._replace(journal=[*sound.journal, unplaced])) == set()
    assert complaints(sound._replace(journal=[*sound.journal, {**unplaced, "event_id": "another"}])) == {"lost"}
    dropped = {**line, "partition": None, "offset": None, "error": "dropped: the disk is full"}
    assert complaints(sound._replace(journal=[*sound.journal, dropped])) == {"doubled"}


def test_an_event_that_vanished_from_the_log_with_its_consequences() -> None:
    court, (_, busy, living) = played()
    living.seq += 2
    court.says(living, "session_activity")
    evidence = evidence_of(court)
    assert complaints(evidence) == {"lost"}
    line = {**evidence.journal[-1], "partition": None, "offset": None, "error": "dropped: the disk is full"}
    reported = [{**line, "producer_seq": seq} for seq in (living.seq - 2, living.seq - 1)]
    assert complaints(evidence._replace(journal=[*evidence.journal, *reported])) == set()
    assert busy.seq


def test_events_in_the_wrong_order() -> None:
    court, (*_, living) = played()
    court.says(living, "session_activity", {"producer_seq": living.seq + 2})
    court.says(living, "session_activity", {"producer_seq": living.seq + 1})
    assert "order" in complaints(evidence_of(court))


def test_a_record_that_nobody_judged(sound: Evidence) -> None:
    last = len(sound.log) - 1
    assert "lost" in complaints(sound._replace(positions={0: last}))


@pytest.mark.parametrize("bend", [{"due_at": 1}, {"fired_at": None}])
def test_a_timeout_that_was_not_due_or_never_fired(sound: Evidence, bend: Row) -> None:
    def alter(told: list[tuple[LogEntry, Row]]) -> list[tuple[LogEntry, Row]]:
        return [(entry, {**line, **bend} if line["transition"] == "T06" else line) for entry, line in told]

    found = complaints(bent_output(sound, "audit", alter))
    assert {"timeout", "false timeout"} & found
    assert ("false timeout" in found) is ("due_at" in bend)


def test_a_timeout_of_a_session_whose_agent_lives(sound: Evidence) -> None:
    timed_out = next(line for _, line in sound.outputs["audit"] if line["transition"] == "T06")
    session = {"agent": "a", "session_id": timed_out["session_id"], "silent": False, "planned_ms": START_MS}
    alive = sound._replace(sessions=[session], lives=[Life("a", START_MS - 1, START_MS + 60_000)])
    assert complaints(alive) == {"false timeout"}
    assert complaints(alive._replace(sessions=[{**session, "silent": True}])) == set()
    assert complaints(alive._replace(lives=[Life("a", START_MS - 1, START_MS + 1)])) == set()
    line = next(line for line in sound.journal if line["session_id"] == timed_out["session_id"])
    dropped = {**line, "producer_seq": 99, "partition": None, "offset": None, "error": "dropped: the disk is full"}
    assert complaints(alive._replace(journal=[*sound.journal, dropped])) == set()


@pytest.mark.parametrize(
    "field", ["state", "epoch", "version", "audit_seq", "state_json", "owner_service", "producers"]
)
def test_a_table_that_is_not_the_fold(sound: Evidence, field: str) -> None:
    key = next(key for key, (kind, _) in sound.table.items() if kind == "SessionState")
    kind, fields = sound.table[key]
    other: object = [] if field == "producers" else "another"
    assert complaints(sound._replace(table={**sound.table, key: (kind, {**fields, field: other})})) == {"table"}
    assert complaints(sound._replace(table={k: row for k, row in sound.table.items() if k != key})) == {"table"}
    assert complaints(sound._replace(table={**sound.table, b"acme:nobody": (kind, fields)})) == {"table"}


def test_every_check_was_seen_to_complain() -> None:
    assert len(checks.CHECKS) == 9


def test_lines_that_a_killed_process_left_half_are_no_promise(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text('{"event_id": "a"}\n{"event_id": "b\n{"event_id": "c"}\n')
    assert [line["event_id"] for line in read_journals([tmp_path / "journal"])] == ["a", "c"]


def test_the_auditor_shares_no_code_with_the_product() -> None:
    for path in Path(tests.auditor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "sessionary"], path.name
