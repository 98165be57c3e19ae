"""What must hold after every schedule. Each check returns its violations as sentences."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sessionary.schemas.limits import CONVERSATION_TURNS_MAX
from sessionary.schemas.records import ArtifactState, AuditRecord, MessageState
from tests.auditor.decoding import SKIPS, VERDICT, Decision, LogEntry, Refusal, decisions_of, read_event
from tests.auditor.oracle import Oracle, find_differences
from tests.core.oracle_rig import compared_children
from tests.simulation.adapter import MACHINES, AnyMachine, LogRecord, Outcome, chunks_in, compared_rows, folded
from tests.simulation.tally_account import check_tallies, count_tallies
from tests.simulation.world import HOLE_MS, QUIET_MS, World
from tests.support.tally_machine import TALLY_SERVICE

GRAVESTONE_MS = 14 * 86_400_000
Life = tuple[bytes, int]


class Written(NamedTuple):
    """The outputs of one partition's transactions, in order."""

    outcomes: list[Outcome]
    audits: list[tuple[bytes, AuditRecord]]
    rejected: list[tuple[bytes | None, Any]]
    cleanups: list[tuple[bytes, Any]]
    tasks: list[tuple[bytes, Any]]
    migrations: list[tuple[bytes, Any]]
    quotas: list[tuple[bytes, Any]]


def outputs_of(outcomes: list[Outcome]) -> Written:
    return Written(
        outcomes,
        [pair for outcome in outcomes for pair in outcome.records_on("audit")],
        [pair for outcome in outcomes for pair in outcome.records_on("rejected")],
        [pair for outcome in outcomes for pair in outcome.records_on("cleanup")],
        [pair for outcome in outcomes for pair in outcome.records_on("tasks")],
        [pair for outcome in outcomes for pair in outcome.records_on("migrations")],
        [pair for outcome in outcomes for pair in outcome.records_on("quotas")],
    )


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
            check_timeouts(log, outputs, world.machines),
            check_tallies(world, partition, outputs.rejected, outputs.cleanups),
        )
        found += [f"partition {partition}: {fault}" for check in checks for fault in check]
        count_outputs(world, outputs)
        count_tallies(world, outputs.outcomes)
    found += check_clickhouse(world)
    found += check_steady_agents(world)
    found += world.quotas.find_faults()
    return found


def check_refold(world: World, partition: int, outputs: Written) -> Iterator[str]:
    """The outputs are those of an uninterrupted fold of the same log."""
    log = world.broker.events[partition]
    cut, decisions = max(1, len(log) if world.seed % 2 else 3), decisions_in(outputs)
    try:
        whole = folded(partition, world.settings, log, cut, world.machines, decisions)
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


def decisions_in(outputs: Written) -> list[AuditRecord]:
    return [line for _, line in outputs.audits if line.kind == "decision" or line.event_type in SKIPS]


def folded_records(log: list[LogRecord], outputs: Written) -> list[LogRecord]:
    """Return the records without those that an operator had skipped."""
    skipped = {
        offset
        for line in decisions_in(outputs)
        if line.event_type in SKIPS and line.gap_first is not None and line.gap_last is not None
        for offset in range(line.gap_first, line.gap_last + 1)
    }
    return [record for record in log if record.offset not in skipped] if skipped else log


def _without_batch_numbers(lines: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return lines without the batch number, which depends on the batch borders."""
    if lines and isinstance(lines[0][1], AuditRecord):
        return [(key, line._replace(batch_number=0)) for key, line in lines]
    return lines


def check_against_oracle(world: World, partition: int, outputs: Written) -> list[str]:
    """The outputs are those of the oracle.

    The oracle knows the sessions' own machine only. One log has one clock and one numbering for all
    machines, and the live rows of every machine decide what a hole is. So this check is left out
    beside one more machine; `check_tallies` is the account of that one.
    """
    if len(world.machines) > len(MACHINES):
        return []
    if world.shape.extra == "large":
        return []  # the oracle does not know the limit of a state's size
    whole = Oracle(world.shape.partitions)
    whole.partitions = {partition: whole.partitions[partition]}
    whole.partitions[partition].decisions += decisions_of(line._asdict() for line in decisions_in(outputs))
    for record in world.broker.events[partition]:
        whole.apply_record(LogEntry(partition, record.offset, record.timestamp_ms, record.key, record.value))
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
    if sorted(line[1:] for _, line in outputs.quotas) != sorted(oracle.notices):
        found.append("the quotas were told something else")
    verdicts = Counter(outcome.partition(" ")[0] for outcome in oracle.outcomes.values())
    for field in ("applied", "duplicate", "refused", "ticks", "fenced_beats"):
        name = {"ticks": "tick", "fenced_beats": "fenced"}.get(field, field)  # the oracle's word
        ours = sum(getattr(outcome.counts, field) for outcome in outputs.outcomes)
        if ours != verdicts[name]:
            found.append(f"{ours} {field}, {verdicts[name]} by the oracle")
    fold = world.cluster.owner(partition).fold
    timers = sum(outcome.counts.timers for outcome in outputs.outcomes)
    told = sum("fired_at" in line for line in oracle.audits)
    if timers != told + len(oracle.untold):
        found.append(f"{timers} timers, {told} and {len(oracle.untold)} untold ones by the oracle")
    found += compared_children(fold, oracle)
    standing = fold.next_deadline_ms
    if standing != oracle.next_deadline():
        found.append(f"the next deadline is {standing}, not {oracle.next_deadline()}")
    return found


def check_counts(outputs: Written, folded_count: int, logged_count: int) -> Iterator[str]:
    """Each record is counted once, and batch numbers and offsets have no gap."""
    totals = [sum(outcome.counts[n] for outcome in outputs.outcomes) for n in range(6)]
    applied, duplicate, refused, audit_lines, timers, ticks = totals
    skipped = sum(line.reason == "skipped" for _, line in outputs.rejected)  # by rules 1 they are not rejected
    if applied + duplicate + refused - skipped + ticks != folded_count or skipped > logged_count - folded_count:
        yield (
            f"{applied} applied + {duplicate} duplicate + {refused} refused ({skipped} skipped) + {ticks} ticks of "
            f"{folded_count} records, and {logged_count - folded_count} unfolded ones"
        )
    if audit_lines != len(outputs.audits) or refused != len(outputs.rejected):
        yield f"counted {audit_lines} audited, {refused} refused; wrote {len(outputs.audits)}, {len(outputs.rejected)}"
    closed_tallies = sum(request.service_id == TALLY_SERVICE for _, request in outputs.cleanups)
    if timers < sum(line.due_at is not None for _, line in outputs.audits) + closed_tallies:
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


def lives_of(outputs: Written) -> Iterator[tuple[Life, AuditRecord]]:
    """Yield each line with its session's life: an id can be used again after its gravestone."""
    lives: dict[bytes, int] = {}
    gone_us: dict[bytes, int] = {}
    for key, line in outputs.audits:
        if line.transition == "T01" and line.appended_at >= gone_us.get(key, 1 << 62):
            lives[key] = lives.get(key, 0) + 1
        if line.transition == "T14":
            gone_us[key] = line.appended_at + GRAVESTONE_MS * 1_000
        if line.audit_seq:
            yield (key, lives.get(key, 0)), line


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
        if state == "Archived" and line.kind not in ("refusal", "gap"):
            yield f"{life}: {line.kind} {line.transition} after it was archived"
        before[life] = line


def check_timeouts(log: list[LogRecord], outputs: Written, machines: Sequence[AnyMachine]) -> Iterator[str]:
    """No timeout is doubled or false, computed from the log alone."""
    fired = [(life, line) for life, line in lives_of(outputs) if line.due_at is not None]
    once = Counter((life, line.transition, line.run_id, line.idem_key, line.epoch, line.due_at) for life, line in fired)
    yield from (f"{timeout} fired {times} times" for timeout, times in once.items() if times > 1)
    if not fired:
        return
    births = {life: line.source_offset for life, line in lives_of(outputs) if line.transition == "T01"}
    settings = [one for one in decisions_of(line._asdict() for line in decisions_in(outputs)) if not one.version]
    repairs = [one for one in settings if one.event_type not in SKIPS]
    clocks, leaps = _clocks(log, settings)
    others = frozenset().union(*(machine.event_types for machine in machines[1:]))
    sessions_log = [record for record in log if _event_type(record) not in others]
    signs = _signs_of_life(sessions_log, outputs, clocks, set(births.values()))
    for life, line in fired:
        if line.transition == "T05":  # its silence counts from here on, as from an event that resumes it
            signs.setdefault(life[0], []).append((line.source_offset, clocks[line.source_offset]))
    for life, line in fired:
        offset, at = line.source_offset, clocks[line.source_offset]
        due_ms = (line.due_at or 0) // 1_000
        if not due_ms <= at or line.fired_at != at * 1_000:
            yield f"{life}: due {line.due_at}, fired {line.fired_at}, at {at}"
        # Times before a repair are of another clock: all clocks of activity count from it.
        repaired = max((repair.offset for repair in repairs if repair.offset <= offset), default=0)
        holes = [(place, ms) for place, ms in leaps if repaired <= place <= offset]
        for leap_offset, leap_ms in holes:
            if births.get(life, offset) < leap_offset and at < leap_ms + QUIET_MS:
                yield f"{life}: {line.reason_code} at {at}, though a hole ended at {leap_ms}"
        if line.reason_code == "inactive":
            heard = max((ms for place, ms in signs.get(life[0], ()) if repaired <= place < offset), default=0)
            budget = _budget(log, births[life])
            # By rules 2 the silence counts from the end of a hole: no agent could be heard before.
            since = {heard, *(ms for _, ms in holes if ms > heard)}
            if due_ms - budget not in since:
                yield f"{life}: inactive, due {due_ms}, though heard at {heard}; its budget is {budget}"


def _clocks(log: list[LogRecord], settings: list[Decision]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return the log's time at each offset, and the ends of holes as (offset, time).

    A repair of the clock is one. Below `until_offset` of the last one, no stamp moves the clock. A
    skip may move it ahead.
    """
    clocks: dict[int, int] = {}
    leaps: list[tuple[int, int]] = []
    now, believed_from, waiting = 0, 0, list(settings)
    for record in log:
        while waiting and waiting[0].offset <= record.offset:
            setting = waiting.pop(0)
            if setting.event_type not in SKIPS:
                now, believed_from = setting.clock_ms, setting.until_offset
                leaps.append((setting.offset, now))
                continue
            if setting.clock_ms - now > HOLE_MS:
                leaps.append((setting.offset, setting.clock_ms))
            now = max(now, setting.clock_ms)
        stamp_ms = record.timestamp_ms if record.offset >= believed_from else now
        if stamp_ms - now > HOLE_MS:
            leaps.append((record.offset, stamp_ms))
        now = clocks[record.offset] = max(now, stamp_ms)
    return clocks, leaps


def _signs_of_life(
    log: list[LogRecord], outputs: Written, clocks: dict[int, int], births: set[int]
) -> dict[bytes, list[tuple[int, int]]]:
    """Return by session the (offset, time) of events that were not refused or duplicate."""
    refused = {line.source_offset for _, line in outputs.rejected}
    heard: dict[bytes, set[tuple[str, int]]] = {}
    signs: dict[bytes, list[tuple[int, int]]] = {}
    for record in log:
        try:
            event_type, fields = read_event(record.value if record.key else None)
        except Refusal:
            continue
        if event_type in ("tick", VERDICT) or record.key is None:
            continue
        if record.offset in births:
            heard[record.key] = set()
        mark = (fields["envelope"]["producer_id"], fields["envelope"]["producer_seq"])
        known = heard.setdefault(record.key, set())
        if record.offset not in refused and (event_type == "heartbeat" or mark not in known):
            signs.setdefault(record.key, []).append((record.offset, clocks[record.offset]))
        if event_type != "heartbeat":
            known.add(mark)
    return signs


def _event_type(record: LogRecord) -> str:
    try:
        return read_event(record.value)[0]
    except Refusal:
        return ""


def _budget(log: list[LogRecord], birth: int) -> int:
    """Return the session's model + tool + network limits, in ms."""
    created = next(record for record in log if record.offset == birth)
    limits = read_event(created.value)[1]["limits"]
    parts = (("model_ms", 30_000), ("tool_ms", 20_000), ("network_ms", 10_000))
    return sum(default if limits[name] is None else limits[name] for name, default in parts)


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
        seen[f"refused: {rejected.reason}"] += 1
    seen["records"] += sum(outcome.counts.records for outcome in outputs.outcomes)
    seen["fenced beats"] += sum(outcome.counts.fenced_beats for outcome in outputs.outcomes)
    seen["duplicate"] += sum(outcome.counts.duplicate for outcome in outputs.outcomes)
    seen["hole"] += any(outcome.position.quiet_until_ms for outcome in outputs.outcomes)
    seen["gravestones packed"] += sum(chunks_in(outcome) for outcome in outputs.outcomes)
    seen["gravestone cleared"] += sum(row is None for outcome in outputs.outcomes for row in outcome.rows.values())


__all__ = ["find_faults"]
