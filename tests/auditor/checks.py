"""The auditor's checks. Each yields its differences; a correct run has none."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from tests.auditor import position_decisions
from tests.auditor.acknowledgements import find_contradictions, missing_rows
from tests.auditor.decoding import (
    SKIPS,
    Decision,
    Line,
    Rejection,
    Row,
    decisions_of,
    hashes_in,
    numbered_events,
    packed_hash,
    read_event,
    run_grave_hashes,
)
from tests.auditor.evidence import Evidence
from tests.auditor.oracle import Oracle, find_differences, replay_log
from tests.auditor.quota_slots import find_slot_faults
from tests.auditor.rules import grave_end
from tests.auditor.stored_rows import find_row_faults
from tests.auditor.table_rows import found_row, ledger_summary, wanted_rows
from tests.auditor.take_overs import find_faults, read_trails

Kind = Literal[
    "lost",
    "doubled",
    "order",
    "chain",
    "timeout",
    "false timeout",
    "rejection",
    "table",
    "judgement",
    "size",
    "rows",
    "rare fault",
    "readiness",
    "growth",
    "integrity",
    "take-over",
    "quota",
]

_FOLDED_COUNTS = ("applied", "duplicate", "fenced_beats", "ticks", "timers")  # of a batch that has records
_BATCH_BYTES_MIN = 66  # of a record in a batch of its own, beside key and value


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
    """Replay the log up to the positions in the table.

    Of a log that was cut, only the records that remain can be replayed: those that were lost are
    differences.
    """
    ends = evidence.positions
    folded = [entry for entry in evidence.log if entry.offset < ends.get(entry.partition, 0)]
    decisions = decisions_of(fields for _, fields in evidence.outputs["audit"])
    oracle = replay_log(folded, evidence.partitions, decisions)
    return AuditInput(evidence, oracle, list(numbered_events(evidence.log)))


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
            except Rejection:
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
        audits = Counter(line["source_offset"] for line in oracle.audits if not _is_decision(line))
        decided = list(oracle.decided)
        audits.update(_accesses(inputs.evidence, partition))
        timers = Counter(line["source_offset"] for line in oracle.audits if "fired_at" in line)
        timers.update(oracle.pending)
        following = 0
        for number, batch in enumerate(written, 1):
            name = f"transaction {batch['number']} of partition {partition}"
            if batch["number"] != number:
                kind: Kind = "doubled" if batch["number"] < number else "lost"
                yield Difference(kind, f"{name} is out of order: expected number {number}")
            first, last = batch["first_offset"], batch["last_offset"]
            if decided and decided[0].offset == first and not any(batch.get(name) for name in _FOLDED_COUNTS):
                one = decided.pop(0)  # this transaction only has a decision; the record there comes next
                if (batch["rejected"], batch["audited"]) != (one.rejected, 1):
                    found_text = f"rejects {batch['rejected']} and audits {batch['audited']}"
                    yield Difference("judgement", f"{name} {found_text} instead of {one.rejected} and 1 for a decision")
                if one.last >= first:
                    following = one.last + 1
                    if last != one.last:
                        yield Difference("judgement", f"{name} ends at {last}, but skips up to {one.last}")
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
                "rejected": words["rejected"],
                "fenced_beats": words["fenced"],
                "ticks": words["tick"],
                **{name: sum(counts[offset] for offset in inside) for name, counts in sums.items()},
            }
            found = {field: batch[field] for field in wanted}
            if found != wanted:
                yield Difference("judgement", f"{name} ({first} to {last}) counts {found} instead of {wanted}")
            following = last + 1


def check_request_counts(inputs: AuditInput) -> Iterator[Difference]:
    """Transactions count all requests and notices that they wrote.

    Ticks on `quotas` are no notices.
    """
    outputs = inputs.evidence.outputs
    for name in ("cleanup", "tasks", "migrations", "quotas"):
        counts = [batch[name] for _, batch in outputs["batches"] if batch.get(name) is not None]
        if uncounted := len(outputs["batches"]) - len(counts):
            yield Difference("judgement", f"{uncounted} transactions do not count their records of {name}")
            continue
        counted, found = sum(counts), sum(name != "quotas" or "step" in fields for _, fields in outputs[name])
        if counted != found:
            kind: Kind = "lost" if found < counted else "doubled"
            yield Difference(kind, f"transactions count {counted} records of {name}, the topic has {found}")


def _is_decision(line: Row) -> bool:
    return line["kind"] == "decision" or line.get("event_type") in SKIPS


def _accesses(evidence: Evidence, partition: int) -> Iterator[int]:
    """Yield the offsets at which a partition tells of callers of the control API."""
    for _, line in evidence.outputs["audit"]:
        if line["kind"] == "access" and line["source_partition"] == partition:
            yield line["source_offset"]


def check_outputs(inputs: AuditInput) -> Iterator[Difference]:
    """Audit lines, rejections and requests of services are the oracle's, each exactly once."""
    outputs = {name: [fields for _, fields in records] for name, records in inputs.evidence.outputs.items()}
    # In a log that was cut, a record that is skipped may have the offset of one that was rejected.
    places = Counter(
        (line["source_partition"], line["source_offset"], line["reason"] == "skipped") for line in outputs["rejected"]
    )
    for (*place, _), times in places.items():
        if times > 1:
            yield Difference("rejection", f"the record at {tuple(place)} was rejected {times} times")
    requests = Counter(line["cleanup_id"] for line in outputs["cleanup"])
    wanted = Counter(line["cleanup_id"] for line in inputs.oracle.all_lines("cleanups"))  # operators may repeat one
    for cleanup_id, times in requests.items():
        if times > max(1, wanted[cleanup_id]):
            yield Difference("doubled", f"clean-up {cleanup_id} was asked for {times} times")
    written = (outputs["audit"], outputs["rejected"], outputs["cleanup"], outputs["tasks"], outputs["migrations"])
    for text in find_differences(inputs.oracle, *written):
        doubled: Kind = "doubled" if text.startswith("audited twice") else "judgement"
        yield Difference("rejection" if ": rejected " in text else doubled, text)


def check_sizes(inputs: AuditInput) -> Iterator[Difference]:
    """No output is larger than the rules in force at its event allow."""
    for name, records in inputs.evidence.outputs.items():
        for entry, fields in records:
            begun = inputs.oracle.partitions[entry.partition].begun
            at = fields.get("source_offset")  # a request does not tell, so any rules may allow it
            rules = [Decision(entry.partition, 0, ""), *(one for first, one in begun if at is None or first <= at)]
            limits = [one.rejected_bytes if name == "rejected" else one.output_bytes for one in rules]
            limit = max(limits) if at is None else limits[-1]
            size = len(entry.key or b"") + len(entry.value or b"") + _BATCH_BYTES_MIN
            if size > limit:
                place = f"{entry.partition}/{entry.offset}"
                yield Difference("size", f"the record of {name} at {place} has {size} bytes, more than {limit}")


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
        names = ("tenant_id", "session_id", "transition", "run_id", "idem_key", "step_name", "due_at")
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
    chunks = [fields for kind, fields in inputs.evidence.table.values() if kind == "TombstoneChunk"]
    table = {key: row for key, row in inputs.evidence.table.items() if row[0] != "TombstoneChunk"}
    packed = {part: chunk["expires_at"] for chunk in chunks for part in hashes_in(chunk["key_hashes"])}
    wanted: dict[bytes, Row] = {}
    for oracle in inputs.oracle.partitions.values():
        wanted |= wanted_rows(oracle)
        fields = ("audit_seq", "epoch", "expires_at")
        for key, grave in oracle.graves.items():
            if key not in table and packed.pop(packed_hash(key), None) == grave_end(grave):
                continue
            ledger = ledger_summary(grave["producers"])
            wanted[key] = {"kind": "Tombstone", "producers": ledger, **{name: grave[name] for name in fields}}
        for key, ends in oracle.run_graves.items():
            if key in table and table[key][0] == "RunTombstone":
                wanted[key] = {"kind": "RunTombstone", "expires_at": ends}
                continue
            if any(packed.pop(part, None) != ends for part in run_grave_hashes(key)) and key not in table:
                yield Difference("table", f"{key.decode()} has no tombstone until {ends}")
    for part in packed:
        yield Difference("table", f"the packed tombstone {part.hex()} is of no archived session")
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


def check_decisions(inputs: AuditInput) -> Iterator[Difference]:
    """The position records have the last decisions of the audit trail."""
    yield from (Difference("judgement", text) for text in position_decisions.find_contradictions(inputs.evidence))


def check_take_overs(inputs: AuditInput) -> Iterator[Difference]:
    """Nothing of an epoch that is over was accepted, and who claimed a session went on alone."""
    trails = read_trails(inputs.evidence, inputs.lines)
    yield from (Difference("take-over", text) for text in find_faults(trails, inputs.evidence.claims))


def check_quotas(inputs: AuditInput) -> Iterator[Difference]:
    """Quotas were notified of what the log says; no tenant has too many runs, and none waits for
    ever.
    """
    yield from (Difference("quota", text) for text in find_slot_faults(inputs.evidence, inputs.oracle))


def check_clickhouse(inputs: AuditInput) -> Iterator[Difference]:
    """Each record has exactly one row in ClickHouse, and there are no other rows."""
    evidence = inputs.evidence
    if evidence.dead_letters:
        yield Difference("rows", f"{evidence.dead_letters} records became dead letters of a sink instead of rows")
    yield from (Difference("rows", text) for text in missing_rows(evidence))
    yield from (Difference(fault.kind, fault.text) for fault in find_row_faults(evidence))


CHECKS: tuple[Callable[[AuditInput], Iterator[Difference]], ...] = (
    check_journals,
    check_numbers,
    check_judged_once,
    check_batches,
    check_acknowledgements,
    check_decisions,
    check_request_counts,
    check_outputs,
    check_sizes,
    check_audit_chains,
    check_timeouts,
    check_table,
    check_take_overs,
    check_quotas,
    check_clickhouse,
)


def run_checks(inputs: AuditInput) -> list[Difference]:
    """Return the differences of all checks."""
    return [difference for check in CHECKS for difference in check(inputs)]


__all__ = ["CHECKS", "AuditInput", "Difference", "Kind", "Line", "replay_evidence", "run_checks"]
