"""The auditor's checks. Each yields its differences; a correct run has none."""

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from tests.auditor.acknowledgements import find_contradictions, missing_rows
from tests.auditor.decoding import (
    Line,
    LogEntry,
    Refusal,
    Row,
    decisions_of,
    hashes_in,
    numbered_events,
    packed_hash,
    read_event,
)
from tests.auditor.evidence import Evidence
from tests.auditor.oracle import Oracle, find_differences, replay_log
from tests.auditor.rules import grave_end
from tests.auditor.table_rows import found_row, ledger_summary, wanted_rows

Kind = Literal[
    "lost",
    "doubled",
    "order",
    "chain",
    "timeout",
    "false timeout",
    "refusal",
    "table",
    "judgement",
    "rows",
    "rare fault",
    "readiness",
    "growth",
    "integrity",
]


class Difference(NamedTuple):
    """One difference, as a sentence."""

    kind: Kind
    text: str


class AuditInput(NamedTuple):
    """The evidence, and the oracle that all checks share."""

    evidence: Evidence
    oracle: Oracle
    lines: list[Line]


def replay_evidence(evidence: Evidence) -> AuditInput:
    """Replay the log up to the positions in the table."""
    ends = evidence.positions
    folded = [entry for entry in evidence.log if entry.offset < ends.get(entry.partition, 0)]
    decisions = decisions_of(fields for _, fields in evidence.outputs["audit"])
    return AuditInput(evidence, replay_log(folded, evidence.partitions, decisions), list(numbered_events(evidence.log)))


def check_journals(inputs: AuditInput) -> Iterator[Difference]:
    """Each event that a client reports as delivered is at that offset; a dropped one is nowhere."""
    log = {(entry.partition, entry.offset): entry for entry in inputs.evidence.log}
    known = {(line.producer, line.seq) for line in inputs.lines}
    events = {line.envelope["event_id"] for line in inputs.lines}
    for line in inputs.evidence.journal:
        what = f"event {line['event_id']} ({line['event_type']}, number {line['producer_seq']}, {line['file']})"
        place = (line["partition"], line["offset"])
        if line["error"] is not None:
            producer = line["tenant_id"], line["session_id"], line["producer_id"]
            if str(line["error"]).startswith("dropped") and (producer, line["producer_seq"]) in known:
                yield Difference("doubled", f"{what} was reported as dropped, but is in the log")
        elif line["offset"] is None:
            # A retry after a lost answer: the broker knew the event and did not return its offset.
            if line["event_id"] and line["event_id"] not in events:
                yield Difference("lost", f"{what} was acknowledged without an offset, and is not in the log")
        elif place not in log:
            yield Difference("lost", f"{what} was acknowledged at {place}, but the log has no record there")
        elif line["event_id"]:
            try:
                found = read_event(log[place].value)[1]["envelope"]
            except Refusal:
                found = {}
            if found.get("event_id") != line["event_id"]:
                yield Difference("lost", f"{what} was acknowledged at {place}, but another record is there")


def check_numbers(inputs: AuditInput) -> Iterator[Difference]:
    """Each producer's numbers are in order, and its client reported every missing one."""
    dropped: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for line in inputs.evidence.journal:
        if line["error"] is not None:
            dropped[line["tenant_id"], line["session_id"], line["producer_id"]].add(line["producer_seq"])
    highest: dict[tuple[str, str, str], int] = defaultdict(int)
    seen: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for entry, _, producer, seq in inputs.lines:
        if seq not in seen[producer] and seq < highest[producer]:
            place = f"{entry.partition}/{entry.offset}"
            yield Difference("order", f"number {seq} of {producer} is at {place}, after {highest[producer]}")
        seen[producer].add(seq)
        highest[producer] = max(highest[producer], seq)
    for producer, numbers in seen.items():
        for seq in sorted(set(range(1, highest[producer])) - numbers - dropped[producer]):
            yield Difference("lost", f"number {seq} of {producer} is missing, and its client did not report it")


def check_judged_once(inputs: AuditInput) -> Iterator[Difference]:
    """Each record of the log was judged, and each event applied at most once."""
    evidence = inputs.evidence
    applied: Counter[tuple[tuple[str, str, str], int]] = Counter()
    for entry, _, producer, seq in inputs.lines:
        if entry.offset >= evidence.positions.get(entry.partition, 0):
            place = f"{entry.partition}/{entry.offset}"
            yield Difference("lost", f"the record at {place} (number {seq} of {producer}) was never judged")
        else:
            oracle = inputs.oracle.partitions[entry.partition]
            applied[producer, seq] += oracle.outcomes[entry.offset] == "applied"
    for (producer, seq), times in applied.items():
        if times > 1:
            yield Difference("doubled", f"number {seq} of {producer} was applied {times} times")


def check_batches(inputs: AuditInput) -> Iterator[Difference]:
    """Transactions follow each other without a gap, and their counts are the oracle's."""
    offsets: dict[int, list[int]] = defaultdict(list)
    for entry in inputs.evidence.log:
        offsets[entry.partition].append(entry.offset)
    batches: dict[int, list[Row]] = defaultdict(list)
    for entry, fields in inputs.evidence.outputs["batches"]:
        batches[entry.partition].append(fields)
    for partition, written in batches.items():
        oracle = inputs.oracle.partitions[partition]
        audits = Counter(line["source_offset"] for line in oracle.audits if line["kind"] != "decision")
        decisions = {line["source_offset"] for line in oracle.audits if line["kind"] == "decision"}
        audits.update(_accesses(inputs.evidence, partition))
        timers = Counter(line["source_offset"] for line in oracle.audits if "fired_at" in line)
        timers.update(oracle.untold)
        following = 0
        for number, batch in enumerate(written, 1):
            name = f"transaction {batch['number']} of partition {partition}"
            if batch["number"] != number:
                kind: Kind = "doubled" if batch["number"] < number else "lost"
                yield Difference(kind, f"{name} is out of order: expected number {number}")
            first, last = batch["first_offset"], batch["last_offset"]
            if first in decisions and not any(batch[name] for name in ("applied", "duplicate", "refused", "ticks")):
                decisions.discard(first)  # this transaction only announces rules; the record there comes next
                continue
            if first < following:
                yield Difference("doubled", f"{name} begins at {first}, but {following - 1} is done already")
            log = offsets[partition]
            inside = log[bisect_left(log, following) : bisect_left(log, last + 1)]
            if inside and inside[0] < first:
                yield Difference("lost", f"{name} begins at {first}, but {inside[0]} is not done")
            words = Counter(oracle.outcomes.get(offset, "unjudged").partition(" ")[0] for offset in inside)
            sums = {"audited": audits, "timers": timers}
            wanted = {
                "applied": words["applied"],
                "duplicate": words["duplicate"],
                "refused": words["refused"],
                "ticks": words["tick"],
                **{name: sum(counts[offset] for offset in inside) for name, counts in sums.items()},
            }
            found = {field: batch[field] for field in wanted}
            if found != wanted:
                yield Difference("judgement", f"{name} ({first} to {last}) counts {found} instead of {wanted}")
            following = last + 1


def _accesses(evidence: Evidence, partition: int) -> Iterator[int]:
    """Yield the offsets at which a partition tells of callers of the control API."""
    for _, line in evidence.outputs["audit"]:
        if line["kind"] == "access" and line["source_partition"] == partition:
            yield line["source_offset"]


def check_outputs(inputs: AuditInput) -> Iterator[Difference]:
    """Audit lines, refusals and requests of services are the oracle's, each exactly once."""
    outputs = {name: [fields for _, fields in records] for name, records in inputs.evidence.outputs.items()}
    places = Counter((line["source_partition"], line["source_offset"]) for line in outputs["rejected"])
    for place, times in places.items():
        if times > 1:
            yield Difference("refusal", f"the record at {place} was refused {times} times")
    requests = Counter(line["cleanup_id"] for line in outputs["cleanup"])
    for cleanup_id, times in requests.items():
        if times > 1:
            yield Difference("doubled", f"clean-up {cleanup_id} was asked for {times} times")
    written = (outputs["audit"], outputs["rejected"], outputs["cleanup"], outputs["tasks"])
    for text in find_differences(inputs.oracle, *written):
        doubled: Kind = "doubled" if text.startswith("audited twice") else "judgement"
        yield Difference("refusal" if ": refused " in text else doubled, text)


def check_audit_chains(inputs: AuditInput) -> Iterator[Difference]:
    """Audit numbers have no gap, and each transition starts in the state that the last one left."""
    trails: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for _, line in inputs.evidence.outputs["audit"]:
        if line["kind"] == "access" and (line["audit_seq"] or line["session_id"] or not line["actor"]):
            yield Difference("chain", f"an access is numbered, or names a session or no principal: {line}")
        if line["audit_seq"]:
            trails[line["tenant_id"], line["session_id"]].append(line)
    for session, trail in trails.items():
        trail.sort(key=lambda line: line["audit_seq"])
        numbers = [line["audit_seq"] for line in trail]
        if numbers != list(range(1, len(trail) + 1)):
            yield Difference("chain", f"the audit trail of {session} is numbered {numbers}")
        if any((a["source_offset"], a["source_n"]) >= (b["source_offset"], b["source_n"]) for a, b in pairwise(trail)):
            yield Difference("order", f"the audit trail of {session} is not in log order")
        state = "UNKNOWN"
        for line in (line for line in trail if line["kind"] == "transition"):
            if line["from_state"] != state:
                step = f"{line['transition']} from {line['from_state']}"
                yield Difference("chain", f"{session} has transition {step}, but its state was {state}")
            state = line["to_state"]


def check_timeouts(inputs: AuditInput) -> Iterator[Difference]:
    """Each due deadline fired once; none fired early or for a session with a live agent."""

    def count_fired(lines: list[Row]) -> Counter[tuple[object, ...]]:
        names = ("tenant_id", "session_id", "transition", "run_id", "idem_key", "due_at")
        return Counter(tuple(line.get(name) for name in names) for line in lines if line.get("fired_at") is not None)

    audits = [line for _, line in inputs.evidence.outputs["audit"]]
    found, wanted = count_fired(audits), count_fired(inputs.oracle.all_lines("audits"))
    for timeout in found | wanted:
        if found[timeout] > 1:
            yield Difference("doubled", f"the deadline {timeout} fired {found[timeout]} times")
        if not wanted[timeout]:
            yield Difference("false timeout", f"the deadline {timeout} fired, but was not due")
        if not found[timeout]:
            yield Difference("timeout", f"the deadline {timeout} never fired")
    beating = _beating(inputs.evidence)
    for line in audits:
        ended_ms = beating.get(line["session_id"])
        if line["transition"] == "T06" and line["reason_code"] == "inactive" and ended_ms is not None:
            fired_ms = line["fired_at"] // 1_000
            if fired_ms < ended_ms:
                text = f"session {line['session_id']} timed out {ended_ms - fired_ms} ms before its agent ended"
                yield Difference("false timeout", text)


def _beating(evidence: Evidence) -> dict[str, int]:
    """Return, for sessions that must not fall silent, when their agent process ended (ms).

    Sessions with a dropped event are left out: it may have been the session's last one.
    """
    ends: dict[str, int] = {}
    dropped = {line["session_id"] for line in evidence.journal if line["error"] is not None}
    for session in evidence.sessions:
        lifetimes = [life for life in evidence.lifetimes if life.agent == session["agent"]]
        ended = [life.ended_ms for life in lifetimes if life.started_ms <= session["planned_ms"] <= life.ended_ms]
        if ended and not session["silent"] and session["session_id"] not in dropped:
            ends[session["session_id"]] = ended[0]
    return ends


def check_table(inputs: AuditInput) -> Iterator[Difference]:
    """The table is what the oracle computes from the log."""
    chunks = [fields for kind, fields in inputs.evidence.table.values() if kind == "GravestoneChunk"]
    table = {key: row for key, row in inputs.evidence.table.items() if row[0] != "GravestoneChunk"}
    packed = {part: chunk["expires_at"] for chunk in chunks for part in hashes_in(chunk["key_hashes"])}
    wanted: dict[bytes, Row] = {}
    for oracle in inputs.oracle.partitions.values():
        wanted |= wanted_rows(oracle)
        fields = ("audit_seq", "epoch", "expires_at")
        for key, grave in oracle.graves.items():
            if key not in table and packed.pop(packed_hash(key), None) == grave_end(grave):
                continue
            ledger = ledger_summary(grave["producers"])
            wanted[key] = {"kind": "Gravestone", "producers": ledger, **{name: grave[name] for name in fields}}
    for part in packed:
        yield Difference("table", f"the packed gravestone {part.hex()} is of no archived session")
    for key in sorted(table.keys() | wanted.keys()):
        if key not in table:
            yield Difference("table", f"{key.decode()} is not in the table")
        elif key not in wanted:
            yield Difference("table", f"{key!r} is in the table, but there is no such session")
        else:
            found = found_row(*table[key])
            # Outside Active the activity clocks are off.
            idle = () if found.get("state") in (None, "Active") else ("last_event_at", "last_work_at")
            same = [name for name in wanted[key] if name not in idle]
            for name in (name for name in same if found.get(name) != wanted[key][name]):
                text = f"{name} of {key.decode()} is {found.get(name)!r} in the table, not {wanted[key][name]!r}"
                yield Difference("table", text)


def check_acknowledgements(inputs: AuditInput) -> Iterator[Difference]:
    """What acknowledgements say fits the transactions that they are of."""
    yield from (Difference("judgement", text) for text in find_contradictions(inputs.evidence))


def check_clickhouse(inputs: AuditInput) -> Iterator[Difference]:
    """Each record has exactly one row in ClickHouse, and there are no other rows."""
    evidence = inputs.evidence
    if evidence.dead_letters:
        yield Difference("rows", f"{evidence.dead_letters} records became dead letters of a sink instead of rows")
    yield from (Difference("rows", text) for text in missing_rows(evidence))
    wanted: dict[str, dict[tuple[int, int], Row]] = {
        "history": {entry[:2]: _history(entry) for entry in evidence.log},
    }
    columns = {
        "audit": ("audit_id", "audit_seq", "kind"),
        "rejected": ("reason", "source_partition", "source_offset"),
        "batches": ("number", "first_offset", "last_offset"),
    }
    for table, names in columns.items():
        outputs = evidence.outputs[table]
        wanted[table] = {entry[:2]: {name: fields[name] for name in names} for entry, fields in outputs}
    for table, records in wanted.items():
        rows: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in evidence.rows[table]:
            rows[row["partition"], row["offset"]].append(row)
        for place in sorted(records.keys() | rows.keys()):
            stored = rows.get(place, [])
            if place not in records:
                yield Difference("rows", f"{table} has a row for {place}, but the topic has no record there")
            elif not stored:
                yield Difference("lost", f"{table} has no row for {place}: {records[place]}")
            elif len(stored) > 1:
                yield Difference("doubled", f"{table} has {len(stored)} rows for {place}: {records[place]}")
            elif any(stored[0][name] != value for name, value in records[place].items()):
                yield Difference("rows", f"{table}'s row for {place} is {stored[0]}, not {records[place]}")


def _history(entry: LogEntry) -> Row:
    return {"digest": hashlib.md5(entry.value or b"", usedforsecurity=False).hexdigest()}


CHECKS: tuple[Callable[[AuditInput], Iterator[Difference]], ...] = (
    *(
        check_journals,
        check_numbers,
        check_judged_once,
        check_batches,
        check_acknowledgements,
        check_outputs,
        check_audit_chains,
        check_timeouts,
        check_table,
        check_clickhouse,
    ),
)


def run_checks(inputs: AuditInput) -> list[Difference]:
    """Return the differences of all checks."""
    return [difference for check in CHECKS for difference in check(inputs)]


__all__ = ["CHECKS", "AuditInput", "Difference", "Kind", "Line", "replay_evidence", "run_checks"]
