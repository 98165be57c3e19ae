"""The auditor can fail: the fold's own output passes, and every change to it is reported."""

import ast
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tests.auditor
from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import BatchAcknowledged, BatchRecord
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import CleanupAction, Limits
from sessionary.stream_processors.core.tombstones import ChunkSizes
from sessionary.stream_processors.core.trail import Access, with_accesses
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from tests.auditor import checks
from tests.auditor.checks import AuditInput, check_table, replay_evidence, run_checks
from tests.auditor.decoding import Decision, LogEntry, Rejection, Row, decisions_of, decode_record, read_event
from tests.auditor.evidence import OUTPUTS, Evidence, Lifetime, compact_changelog, decisions_in_positions, read_journals
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import SETTINGS, START_MS, OracleRig
from tests.support.event_factory import EventFactory, snapshot
from tests.support.judges import JUDGE

BRIEF = Limits(model_ms=1_000, tool_ms=1_000, network_ms=1_000, grace_ms=1_000, override=True)
POSITION_KEY = b"\x00position"


def recorded_rig() -> tuple[OracleRig, list[EventFactory]]:
    """Return a rig with three sessions (timed out, ended, live), a rejection and a duplicate."""
    rig = OracleRig()
    silent, busy, living = (EventFactory(name) for name in ("silent", "busy", "living"))
    rig.start(silent, limits=BRIEF)
    rig.start(busy)
    rig.start(living)
    rig.send(busy, "session_activity")
    rig.append(rig.log[-1].key, rig.log[-1].value)  # a duplicate
    rig.send(busy, "session_recovered")  # illegal
    rig.send(busy, "session_terminated", reason="completed")
    (cleanup_id,) = rig.oracle.rows[busy.key.encoded()]["cleanups"]
    rig.send(busy, "resources_released", cleanup_id=cleanup_id, actions=[CleanupAction("close_connection", True, 1)])
    rig.advance(6_000)
    rig.send(living, "session_activity")
    return rig, [silent, busy, living]


def evidence_of(rig: OracleRig) -> Evidence:
    """Return topics, tables and journals as if a processor had written the fold's output."""
    rules = rig.first_position.rules.version
    log = [LogEntry(0, *record) for record in rig.log]
    outputs: dict[str, list[tuple[LogEntry, Row]]] = {name: [] for name in OUTPUTS}
    for number, outcome in enumerate(rig.outcomes, 1):
        counts = outcome.counts
        batch = BatchRecord(
            *(0, number, counts.first_offset, counts.last_offset, counts.applied, counts.duplicate, counts.rejected),
            *(len(outcome.records_on("audit")), counts.timers, counts.ticks, START_MS * 1_000, None, "w1"),
            cleanup=counts.cleanup,
            tasks=counts.tasks,
            migrations=counts.migrations,
            quotas=counts.quotas,
        )
        written: dict[str, Any] = {
            "audit": outcome.records_on("audit"),
            "rejected": outcome.records_on("rejected"),
            "cleanup": outcome.records_on("cleanup"),
            "tasks": outcome.records_on("tasks"),
            "migrations": outcome.records_on("migrations"),
        }
        for name, records in (*written.items(), ("batches", [(None, batch)])):
            for key, record in records:
                # Of the older rules a transaction's record has fewer fields.
                value = encode_record(record, rules) if name == "batches" else encode_record(record)
                entry = LogEntry(0, len(outputs[name]), START_MS, key, value)
                outputs[name].append((entry, decode_record(value)[1]))
    changes = [
        *((key, encode_record(row)) for key, row in rig.fold.rows.items()),
        (POSITION_KEY, encode_record(rig.outcomes[-1].position)),
    ]
    changelog = [LogEntry(0, n, START_MS, key, value) for n, (key, value) in enumerate(changes)]
    table, positions = compact_changelog(changelog)
    rows = {**_rows(log, outputs), "batch_acknowledgements": []}
    found = Evidence(1, log, outputs, table, positions, _journal(log), rows)
    return found._replace(decided=decisions_in_positions(changelog))


def _journal(log: list[LogEntry]) -> list[Row]:
    lines = []
    for entry in log:
        try:
            kind, fields = read_event(entry.value)
        except Rejection:
            continue
        if kind != "tick":
            names = ("event_id", "event_type", "tenant_id", "session_id", "producer_id", "producer_seq")
            line = {name: fields["envelope"][name] for name in names}
            lines.append({**line, "partition": 0, "offset": entry.offset, "error": None, "file": "journal"})
    return lines


def _rows(log: list[LogEntry], outputs: dict[str, list[tuple[LogEntry, Row]]]) -> dict[str, list[Row]]:
    def place(entry: LogEntry) -> Row:
        return {"partition": entry.partition, "offset": entry.offset}

    rows = {name: [{**fields, **place(entry)} for entry, fields in records] for name, records in outputs.items()}
    digests = (hashlib.md5(entry.value or b"", usedforsecurity=False).hexdigest() for entry in log)
    return {**rows, "history": [{**place(entry), "digest": digest} for entry, digest in zip(log, digests, strict=True)]}


def complaints(evidence: Evidence) -> set[str]:
    return {difference.kind for difference in run_checks(replay_evidence(evidence))}


@pytest.fixture(scope="module")
def correct() -> Evidence:
    return evidence_of(recorded_rig()[0])


def without(records: list[Any], n: int) -> list[Any]:
    return [*records[:n], *records[n + 1 :]]


def with_output(evidence: Evidence, name: str, change: Callable[[list[Any]], list[Any]]) -> Evidence:
    return evidence._replace(outputs={**evidence.outputs, name: change(evidence.outputs[name])})


def with_rows(evidence: Evidence, name: str, change: Callable[[list[Row]], list[Row]]) -> Evidence:
    return evidence._replace(rows={**evidence.rows, name: change(evidence.rows[name])})


def test_correct_evidence_passes(correct: Evidence) -> None:
    assert run_checks(replay_evidence(correct)) == []
    audits = [line for _, line in correct.outputs["audit"]]
    assert sum(line["fired_at"] is not None for line in audits) >= 2
    assert sum(line["kind"] == "rejection" for line in audits) == 1
    assert len(correct.table) == 3


def test_an_access_is_in_no_log_and_is_right_only_without_number_and_session() -> None:
    rig, _ = recorded_rig()
    access = Access("acme", "ann", "unknown_session", "requests: 1")
    outcome = rig.outcomes[3]
    by_rules_2 = outcome._replace(position=outcome.position._replace(rules=NEWEST_RULES))
    rig.outcomes[3] = with_accesses(by_rules_2, 0, [access])._replace(position=outcome.position)
    reported = evidence_of(rig)
    place = next(n for n, (_, line) in enumerate(reported.outputs["audit"]) if line["kind"] == "access")

    def number(records: list[Any]) -> list[Any]:
        entry, line = records[place]
        return [*records[:place], (entry, {**line, "audit_seq": 1}), *records[place + 1 :]]

    assert complaints(reported) == set()
    assert "chain" in complaints(with_output(reported, "audit", number))


@pytest.mark.parametrize("name", ["audit", "rejected", "cleanup", "batches"])
def test_an_output_that_is_missing_doubled_or_altered(correct: Evidence, name: str) -> None:
    for n in range(len(correct.outputs[name])):
        assert complaints(with_output(correct, name, lambda records, n=n: without(records, n))), n  # type: ignore[misc]
        assert complaints(with_output(correct, name, lambda records, n=n: [*records, records[n]])), n  # type: ignore[misc]
    altered = {"audit": "to_state", "rejected": "reason", "cleanup": "actions", "batches": "applied"}[name]

    def alter(records: list[tuple[LogEntry, Row]]) -> list[tuple[LogEntry, Row]]:
        entry, fields = records[0]
        return [(entry, {**fields, altered: "another"}), *records[1:]]

    assert complaints(with_output(correct, name, alter))


@pytest.mark.parametrize("name", ["cleanup", "tasks", "migrations", "quotas"])
def test_a_transaction_that_counts_other_requests_than_it_wrote_or_none(correct: Evidence, name: str) -> None:
    def count(number: int | None) -> Callable[[list[Any]], list[Any]]:
        def change(records: list[Any]) -> list[Any]:
            entry, fields = records[0]
            return [(entry, {**fields, name: number}), *records[1:]]

        return change

    assert correct.outputs["batches"][0][1][name] == 0
    assert complaints(with_output(correct, "batches", count(1))) == {"lost"}
    assert complaints(with_output(correct, "batches", count(-1))) == {"doubled"}
    assert complaints(with_output(correct, "batches", count(None))) == {"judgement"}


@pytest.mark.parametrize("name", ["history", "audit", "rejected", "batches"])
def test_a_row_that_is_missing_doubled_altered_or_unknown(correct: Evidence, name: str) -> None:
    column = {"history": "digest", "audit": "audit_id", "rejected": "reason", "batches": "number"}[name]
    assert complaints(with_rows(correct, name, lambda rows: without(rows, 0))) == {"lost"}
    assert complaints(with_rows(correct, name, lambda rows: [*rows, rows[-1]])) == {"doubled"}
    assert complaints(with_rows(correct, name, lambda rows: [{**rows[0], column: "x"}, *rows[1:]])) == {"rows"}
    assert complaints(with_rows(correct, name, lambda rows: [*rows, {**rows[0], "offset": 999}])) == {"rows"}
    assert complaints(correct._replace(dead_letters=1)) == {"rows"}


def with_acknowledgements(evidence: Evidence, *acknowledged: BatchAcknowledged, partition: int = 0) -> Evidence:
    """Return the evidence with acknowledgements at the end of `batches`, and their rows."""
    reported = [decode_record(encode_record(record))[1] for record in acknowledged]
    entries = [(LogEntry(partition, 10_000 + n, START_MS, None, b""), fields) for n, fields in enumerate(reported)]
    rows = [
        {"partition": partition, "offset": entry.offset, "number": one.number, "acknowledged_us": one.acknowledged_at}
        for (entry, _), one in zip(entries, acknowledged, strict=True)
    ]
    return with_rows(evidence._replace(acknowledgements=entries), "batch_acknowledgements", lambda _: rows)


def test_an_acknowledgement_that_contradicts_the_transactions(correct: Evidence) -> None:
    number = len(correct.outputs["batches"])
    right = BatchAcknowledged(0, number, START_MS * 1_000 + 5, "w1")
    assert complaints(with_acknowledgements(correct, right, right)) == set()
    for wrong in (
        right._replace(number=number + 1),
        right._replace(partition=1),
        right._replace(acknowledged_at=START_MS * 1_000 - 1),
        right._replace(instance="w2"),
    ):
        assert complaints(with_acknowledgements(correct, wrong)) == {"judgement"}
    assert complaints(with_acknowledgements(correct, right, right._replace(acknowledged_at=START_MS * 1_000 + 6)))
    assert complaints(with_acknowledgements(correct, right, partition=1)) == {"judgement"}
    early = with_acknowledgements(correct, right)
    entry, fields = early.acknowledgements[0]
    assert complaints(early._replace(acknowledgements=[(entry._replace(offset=0), fields)])) == {"judgement"}
    former = with_acknowledgements(correct, right._replace(number=number - 1))

    def next_batch_says(reported_us: int) -> Evidence:
        return with_output(
            former,
            "batches",
            lambda records: [
                *records[:-1],
                (records[-1][0], {**records[-1][1], "previous_acknowledged_at": reported_us}),
            ],
        )

    assert complaints(next_batch_says(right.acknowledged_at)) == set()
    assert complaints(next_batch_says(right.acknowledged_at + 1)) == {"judgement"}


def test_an_acknowledgement_without_a_row_and_a_row_without_one(correct: Evidence) -> None:
    number = len(correct.outputs["batches"])
    both = with_acknowledgements(correct, BatchAcknowledged(0, number, START_MS * 1_000 + 5, "w1"))
    assert complaints(both._replace(acknowledgements=[])) == {"rows"}
    assert complaints(with_rows(both, "batch_acknowledgements", lambda _: [])) == {"rows"}


def test_a_journalled_event_that_the_log_does_not_hold(correct: Evidence) -> None:
    line = correct.journal[3]
    assert complaints(correct._replace(journal=[*correct.journal, {**line, "offset": 9_999}])) == {"lost"}
    assert complaints(correct._replace(journal=[*correct.journal, {**line, "event_id": "another"}])) == {"lost"}
    unplaced = {**line, "offset": None}
    assert complaints(correct._replace(journal=[*correct.journal, unplaced])) == set()
    assert complaints(correct._replace(journal=[*correct.journal, {**unplaced, "event_id": "another"}])) == {"lost"}
    dropped = {**line, "partition": None, "offset": None, "error": "dropped: the disk is full"}
    assert complaints(correct._replace(journal=[*correct.journal, dropped])) == {"doubled"}


def test_an_event_that_is_missing_from_the_log_and_from_all_outputs() -> None:
    rig, (_, busy, living) = recorded_rig()
    living.seq += 2
    rig.send(living, "session_activity")
    evidence = evidence_of(rig)
    assert complaints(evidence) == {"lost"}
    line = {**evidence.journal[-1], "partition": None, "offset": None, "error": "dropped: the disk is full"}
    reported = [{**line, "producer_seq": seq} for seq in (living.seq - 2, living.seq - 1)]
    assert complaints(evidence._replace(journal=[*evidence.journal, *reported])) == set()
    assert busy.seq


def test_events_in_the_wrong_order() -> None:
    rig, (*_, living) = recorded_rig()
    rig.send(living, "session_activity", {"producer_seq": living.seq + 2})
    rig.send(living, "session_activity", {"producer_seq": living.seq + 1})
    assert "order" in complaints(evidence_of(rig))


def test_a_record_that_was_not_judged(correct: Evidence) -> None:
    last = len(correct.log) - 1
    assert "lost" in complaints(correct._replace(positions={0: last}))


@pytest.mark.parametrize("altered", [{"due_at": 1}, {"fired_at": None}])
def test_a_timeout_that_was_not_due_or_never_fired(correct: Evidence, altered: Row) -> None:
    def alter(records: list[tuple[LogEntry, Row]]) -> list[tuple[LogEntry, Row]]:
        return [(entry, {**line, **altered} if line["transition"] == "T06" else line) for entry, line in records]

    found = complaints(with_output(correct, "audit", alter))
    assert {"timeout", "false timeout"} & found
    assert ("false timeout" in found) is ("due_at" in altered)


def test_a_timeout_of_a_session_whose_agent_lives(correct: Evidence) -> None:
    timed_out = next(line for _, line in correct.outputs["audit"] if line["transition"] == "T06")
    session = {"agent": "a", "session_id": timed_out["session_id"], "silent": False, "planned_ms": START_MS}
    alive = correct._replace(sessions=[session], lifetimes=[Lifetime("a", START_MS - 1, START_MS + 60_000)])
    assert complaints(alive) == {"false timeout"}
    assert complaints(alive._replace(sessions=[{**session, "silent": True}])) == set()
    assert complaints(alive._replace(lifetimes=[Lifetime("a", START_MS - 1, START_MS + 1)])) == set()
    line = next(line for line in correct.journal if line["session_id"] == timed_out["session_id"])
    dropped = {**line, "producer_seq": 99, "partition": None, "offset": None, "error": "dropped: the disk is full"}
    assert complaints(alive._replace(journal=[*correct.journal, dropped])) == set()


@pytest.mark.parametrize(
    "field", ["state", "epoch", "version", "audit_seq", "state_json", "owner_service", "producers"]
)
def test_a_table_that_is_not_the_fold(correct: Evidence, field: str) -> None:
    key = next(key for key, (kind, _) in correct.table.items() if kind == "SessionState")
    kind, fields = correct.table[key]
    other: object = [] if field == "producers" else "another"
    assert complaints(correct._replace(table={**correct.table, key: (kind, {**fields, field: other})})) == {"table"}
    assert complaints(correct._replace(table={k: row for k, row in correct.table.items() if k != key})) == {"table"}
    assert complaints(correct._replace(table={**correct.table, b"acme:unknown": (kind, fields)})) == {"table"}


def test_a_packed_tombstone_that_is_missing_strange_or_too_short_is_reported() -> None:
    rig = OracleRig(SETTINGS._replace(chunk_sizes=ChunkSizes(chunk_keys=2)))
    for name in ("first", "second"):
        assert rig.send(EventFactory(name), "session_created") == "applied"
    rig.advance(400_000, step_ms=5_000)
    evidence = evidence_of(rig)
    ((key, (kind, fields)),) = evidence.table.items()
    assert kind == "TombstoneChunk"
    changed: list[Row] = [
        {**fields, "key_hashes": fields["key_hashes"][16:]},
        {**fields, "key_hashes": fields["key_hashes"] + bytes(16)},
        {**fields, "expires_at": fields["expires_at"] - 1},
    ]
    for chunk in (fields, *changed):
        inputs = AuditInput(evidence._replace(table={key: (kind, chunk)}), rig.all_partitions, [])
        assert bool([*check_table(inputs)]) == (chunk is not fields)


@pytest.mark.parametrize("name", ["audit", "rejected", "cleanup"])
def test_an_output_that_is_larger_than_its_rules_allow(correct: Evidence, name: str) -> None:
    def grow(spare: int) -> Callable[[list[Any]], list[Any]]:
        def change(records: list[Any]) -> list[Any]:
            entry, fields = records[-1]
            size = (2 << 20) - 66 - len(entry.key or b"") - spare
            return [*records[:-1], (entry._replace(value=bytes(size)), fields)]

        return change

    assert complaints(with_output(correct, name, grow(0))) == set()
    assert complaints(with_output(correct, name, grow(-1))) == {"size"}


def test_rules_that_begin_bound_the_outputs_of_later_events_only() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    evidence = evidence_of(rig)
    inputs = replay_evidence(evidence)
    (entry, fields), *others = evidence.outputs["audit"]
    inputs.oracle.partitions[0].begun.append(
        (fields["source_offset"] + 1, Decision(0, 0, "rules_announced", 2, output_bytes=1_000))
    )
    for name, (changed, reported) in {"before": (entry, fields), "after": others[-1]}.items():
        large = (changed._replace(value=bytes(2_000)), reported)
        found = [*checks.check_sizes(inputs._replace(evidence=evidence._replace(outputs={"audit": [large]})))]
        assert [one.kind for one in found] == ["size"] * (name == "after")


def test_an_announcement_tells_the_sizes_of_its_rules() -> None:
    rig = FoldRig()
    rig.announce(NEWEST_RULES._replace(output_bytes_max=3, rejected_bytes_max=4))
    assert decisions_of(line._asdict() for line in rig.audits()) == [
        Decision(0, 0, "rules_announced", 2, output_bytes=3, rejected_bytes=4)
    ]


def test_there_are_as_many_checks_as_this_file_covers() -> None:
    assert len(checks.CHECKS) == 15


def test_half_lines_of_a_killed_process_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text('{"event_id": "a"}\n{"event_id": "b\n{"event_id": "c"}\n')
    assert [line["event_id"] for line in read_journals([tmp_path / "journal"])] == ["a", "c"]


def test_the_auditor_shares_no_code_with_the_product() -> None:
    for path in Path(tests.auditor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "sessionary"], path.name


def test_contents_that_are_apart_are_put_back_into_their_rows() -> None:
    rig = OracleRig()
    rig.start(EventFactory("whole"))
    rig.start(EventFactory("apart"), snapshot=snapshot("large", '{"a":"' + 2_000 * "a" + '"}'))
    packed = FamilyCodec(JUDGE.families).pack_changes(rig.fold.rows, NEWEST_RULES.version)
    written = [(key, row and row.value) for key, row in packed.items()]
    assert len(written) == 3
    table, _ = compact_changelog(LogEntry(0, n, START_MS, *record) for n, record in enumerate(written))
    whole = [(key, encode_record(row)) for key, row in rig.fold.rows.items()]
    assert table == compact_changelog(LogEntry(0, n, START_MS, *record) for n, record in enumerate(whole))[0]
    (key, *_), stray = written[0], written[-1]
    left, _ = compact_changelog([LogEntry(0, 0, START_MS, key, whole[0][1]), LogEntry(0, 1, START_MS, *stray)])
    assert sorted(left) == sorted([key, stray[0]])  # a content that no row lacks is a difference
