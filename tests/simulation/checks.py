"""What must hold after every schedule. Each check returns its violations as sentences."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from sessionary.schemas.limits import CONVERSATION_TURNS_MAX
from sessionary.schemas.records import ArtifactState, AuditRecord, MessageState
from tests.auditor.decoding import SKIPS, LogEntry, decisions_of
from tests.auditor.oracle import Oracle, find_differences
from tests.core.oracle_rig import compared_children
from tests.simulation.adapter import JUDGE, chunks_in, compared_rows, folded
from tests.simulation.migration_checks import check_migrations, count_migrations
from tests.simulation.outputs import Life, Written, decisions_in, folded_records, lives_of, outputs_of
from tests.simulation.timeout_checks import check_timeouts
from tests.simulation.world import World
from tests.support.tally_family import TALLY_SERVICE


def find_faults(world: World) -> list[str]:
    """Return everything that is wrong after a schedule."""
    found: list[str] = []
    for partition, whole_log in enumerate(world.broker.events):
        outputs = outputs_of(world.broker.outcomes[partition])
        log = folded_records(whole_log, outputs)
        checks = (
            check_refold(world, partition, outputs),
            check_against_oracle(world, partition, outputs),
            check_counts(outputs, len(log), len(whole_log)),
            check_numbers(outputs),
            check_chains(outputs),
            check_timeouts(log, outputs),
            check_migrations(log, outputs, world.cluster.owner(partition).fold.rows),
        )
        found += [f"partition {partition}: {fault}" for check in checks for fault in check]
        count_outputs(world, outputs)
        count_migrations(world, outputs)
    found += check_clickhouse(world)
    found += check_steady_agents(world)
    found += world.quotas.find_faults()
    return found


def check_refold(world: World, partition: int, outputs: Written) -> Iterator[str]:
    """The outputs are those of an uninterrupted fold of the same log."""
    log = world.broker.events[partition]
    cut, decisions = max(1, len(log) if world.seed % 2 else 3), decisions_in(outputs)
    try:
        whole = folded(partition, world.settings, log, cut, world.judge, decisions)
    except ValueError as error:
        yield f"the decisions in the audit trail cannot be repeated: {error}"
        return
    wanted = outputs_of(whole.outcomes)
    for name in ("audits", "rejected", "cleanups", "tasks", "migrations", "quotas"):
        ours, theirs = _without_batch_numbers(getattr(outputs, name)), _without_batch_numbers(getattr(wanted, name))
        if ours != theirs:
            first = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
            yield f"{len(ours)} {name}, {len(theirs)} in one go; from no. {first}: {ours[first : first + 1]} instead of"
            yield f"    {theirs[first : first + 1]}"
    fold = world.cluster.owner(partition).fold
    yield from compared_rows(fold, whole)


def _without_batch_numbers(lines: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return lines without the batch number, which depends on the batch borders."""
    if lines and isinstance(lines[0][1], AuditRecord):
        return [(key, line._replace(batch_number=0)) for key, line in lines]
    return lines


def check_against_oracle(world: World, partition: int, outputs: Written) -> list[str]:
    """The outputs are those of the oracle.

    The oracle knows no family of rows that only tests have: with one this check is left out.
    """
    if world.judge is not JUDGE:
        return []
    if world.shape.extra == "large":
        return []  # the oracle does not know the limit of a state's size
    whole = Oracle(world.shape.partitions)
    whole.partitions = {partition: whole.partitions[partition]}
    whole.partitions[partition].decisions += decisions_of(line._asdict() for line in decisions_in(outputs))
    for record in world.broker.events[partition]:
        whole.apply_record(LogEntry(partition, *record))
    whole.partitions[partition].take_decisions(1 << 62)
    found = [
        re.sub(r"\{.*\}: ", "", fault)
        for fault in find_differences(
            whole,
            [line._asdict() for _, line in outputs.audits],
            [line._asdict() for _, line in outputs.rejected],
            [line._asdict() for _, line in outputs.cleanups],
            [line._asdict() for _, line in outputs.tasks],
            [line._asdict() for _, line in outputs.migrations],
        )
    ]
    oracle = whole.partitions[partition]
    if sorted(line for _, line in outputs.quotas) != sorted(oracle.notices):
        found.append("the quotas were notified of something else")
    verdicts = Counter(outcome.partition(" ")[0] for outcome in oracle.outcomes.values())
    for field in ("applied", "duplicate", "rejected", "ticks", "fenced_beats"):
        name = {"ticks": "tick", "fenced_beats": "fenced"}.get(field, field)  # the oracle's word
        ours = sum(getattr(outcome.counts, field) for outcome in outputs.outcomes)
        if ours != verdicts[name]:
            found.append(f"{ours} {field}, {verdicts[name]} by the oracle")
    fold = world.cluster.owner(partition).fold
    timers = sum(outcome.counts.timers for outcome in outputs.outcomes)
    reported = sum("fired_at" in line for line in oracle.audits)
    unreported = len(oracle.pending) + oracle.begun_again
    if timers != reported + unreported:
        found.append(f"{timers} timers, {reported} reported and {unreported} other ones by the oracle")
    found += compared_children(fold, oracle)
    standing = fold.next_deadline_ms
    if standing != oracle.next_deadline():
        found.append(f"the next deadline is {standing}, not {oracle.next_deadline()}")
    return found


def check_counts(outputs: Written, folded_count: int, logged_count: int) -> Iterator[str]:
    """Each record is counted once, and batch numbers and offsets have no gap."""
    totals = [sum(outcome.counts[n] for outcome in outputs.outcomes) for n in range(6)]
    applied, duplicate, rejected, audit_lines, timers, ticks = totals
    skipped = sum(line.reason == "skipped" for _, line in outputs.rejected)
    fenced = sum(outcome.counts.fenced_beats for outcome in outputs.outcomes)
    counted = applied + duplicate + rejected - skipped + fenced + ticks
    if counted != folded_count or skipped > logged_count - folded_count:
        yield (
            f"{applied} applied + {duplicate} duplicate + {rejected} rejected ({skipped} skipped) + {fenced} fenced + "
            f"{ticks} ticks of {folded_count} records, and {logged_count - folded_count} unfolded ones"
        )
    if audit_lines != len(outputs.audits) or rejected != len(outputs.rejected):
        yield (
            f"counted {audit_lines} audited, {rejected} rejected; wrote {len(outputs.audits)}, {len(outputs.rejected)}"
        )
    for name, lines in (
        ("cleanup", outputs.cleanups),
        ("tasks", outputs.tasks),
        ("migrations", outputs.migrations),
        ("quotas", outputs.quotas),
    ):
        counted = sum(getattr(outcome.counts, name) for outcome in outputs.outcomes)
        if counted != len(lines):
            yield f"counted {counted} records of {name}; wrote {len(lines)}"
    closed_tallies = sum(request.service_id == TALLY_SERVICE for _, request in outputs.cleanups)
    # The end of a migration and that of its hold are one timer's.
    reported = sum(line.due_at is not None and line.reason_code != "migration_aborted" for _, line in outputs.audits)
    if timers < reported + closed_tallies:
        yield f"{timers} timers by count"  # more if calls outlive their session: `check_against_oracle`
    numbers = [outcome.position.batch_number for outcome in outputs.outcomes]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"transactions {numbers}"
    for before, after in pairwise(outputs.outcomes):
        if after.counts.first_offset < before.position.next_offset:
            yield f"offset {after.counts.first_offset} again after {before.counts.last_offset}"
    if any(
        line.batch_number != outcome.position.batch_number
        for outcome in outputs.outcomes
        for _, line in outcome.records_on("audit")
    ):
        yield "an audit line has another batch number than its batch"


def check_numbers(outputs: Written) -> Iterator[str]:
    """Audit numbers have no gap; no line, id or source occurs twice; no event is applied twice."""
    last: dict[Life, int] = {}
    seen: set[Any] = set()
    for life, line in lives_of(outputs):
        if line.audit_seq != last.get(life, 0) + 1:
            yield f"{life}: audit no. {line.audit_seq} after {last.get(life, 0)}"
        last[life] = line.audit_seq
        if line.kind in ("transition", "release") and line.producer_seq is not None:
            event = (life, line.producer_id, line.producer_seq)
            if event in seen:
                yield f"{event} is applied twice"
            seen.add(event)
    for name in ("audit_id", "source"):
        marks = Counter(
            line.audit_id if name == "audit_id" else (line.source_offset, line.source_n) for _, line in outputs.audits
        )
        yield from (f"{name} {mark} occurs {times} times" for mark, times in marks.items() if times > 1)


def check_chains(outputs: Written) -> Iterator[str]:
    """Each state follows from the line before, epochs only grow, archived stays archived."""
    before: dict[Life, AuditRecord] = {}
    for life, line in lives_of(outputs):
        last = before.get(life)
        state, epoch = (last.to_state, last.epoch) if last is not None else ("UNKNOWN", 0)
        if line.from_state != state:
            yield f"{life}, audit no. {line.audit_seq}: from {line.from_state}, but it was {state}"
        if line.epoch < epoch:
            yield f"{life}: epoch {line.epoch} after {epoch}"
        if state == "Archived" and line.kind not in ("rejection", "gap"):
            yield f"{life}: {line.kind} {line.transition} after it was archived"
        before[life] = line


def check_clickhouse(world: World) -> Iterator[str]:
    """Each audit line is in ClickHouse exactly once."""
    found = sorted(world.clickhouse.rows, key=lambda row: row[0])
    wanted = [((p, offset), line) for p, log in enumerate(world.broker.audits) for offset, line in log.records]
    if [place for place, _ in found] != [place for place, _ in wanted]:
        twice = [place for place, times in Counter(place for place, _ in found).items() if times > 1]
        lacking = {place for place, _ in wanted} - {place for place, _ in found}
        yield f"ClickHouse has {len(found)} rows of {len(wanted)}; twice: {twice}, lacking: {sorted(lacking)}"
    elif any(a is not b for (_, a), (_, b) in zip(found, wanted, strict=True)):
        yield "ClickHouse has another line than the topic"


def check_steady_agents(world: World) -> Iterator[str]:
    """A session whose agent never falls silent never times out as inactive."""
    for steady_sessions in world.agents.steady_sessions:
        outputs = outputs_of(world.broker.outcomes[steady_sessions.session.partition])
        lines = [line for key, line in outputs.audits if key == steady_sessions.session.encoded]
        if not any(line.transition == "T02" for line in lines):
            continue
        world.seen["steady agent lived"] += 1
        yield from (
            f"steady agent: {line.transition} {line.reason}" for line in lines if line.reason_code == "inactive"
        )


def count_outputs(world: World, outputs: Written) -> None:
    """Count what occurred in the outputs."""
    seen = world.seen
    for _, line in outputs.audits:
        seen[f"audit: {line.kind}"] += 1
        if line.event_type in SKIPS:
            seen[f"decided: {line.event_type}"] += 1
        if line.transition:
            seen[line.transition] += 1
        if line.to_run_state:
            seen[f"run: {line.from_run_state} to {line.to_run_state}, {line.reason_code}"] += 1
        if line.to_call_state:
            seen[f"call: {line.from_call_state} to {line.to_call_state}"] += 1
        if line.to_step_state:
            seen[f"step: {line.from_step_state} to {line.to_step_state}"] += 1
        if line.due_at is not None:
            seen[f"fired: {line.reason_code}"] += 1
    for row in (row for outcome in outputs.outcomes for row in outcome.rows.values()):
        if isinstance(row, ArtifactState):
            seen[f"artifact: {row.state}"] += 1
        elif isinstance(row, MessageState) and row.turn > CONVERSATION_TURNS_MAX:
            seen["turn: in the row of an older one"] += 1
    for _, rejected in outputs.rejected:
        seen[f"rejected: {rejected.reason}"] += 1
    seen["records"] += sum(outcome.counts.records for outcome in outputs.outcomes)
    seen["fenced beats"] += sum(outcome.counts.fenced_beats for outcome in outputs.outcomes)
    seen["duplicate"] += sum(outcome.counts.duplicate for outcome in outputs.outcomes)
    seen["log: outage"] += any(outcome.position.outage_grace_until_ms for outcome in outputs.outcomes)
    seen["tombstones packed"] += sum(chunks_in(outcome) for outcome in outputs.outcomes)
    seen["tombstone cleared"] += sum(row is None for outcome in outputs.outcomes for row in outcome.rows.values())
