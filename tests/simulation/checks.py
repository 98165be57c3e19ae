"""What has to hold after every schedule. Each check returns sentences; none where all is well."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from sessionary.schemas.records import AuditRecord
from tests.auditor.account import Account, differences
from tests.auditor.reading import LogEntry, No, read
from tests.simulation.adapter import LogRecord, Outcome, compared_rows, folded
from tests.simulation.world import HOLE_MS, QUIET_MS, World

GRAVESTONE_MS = 14 * 86_400_000
Life = tuple[bytes, int]


class Written(NamedTuple):
    """All that one partition's transactions wrote, in order."""

    outcomes: list[Outcome]
    audits: list[tuple[bytes, AuditRecord]]
    rejected: list[tuple[bytes | None, Any]]
    cleanups: list[tuple[bytes, Any]]


def written(outcomes: list[Outcome]) -> Written:
    return Written(
        outcomes,
        [pair for outcome in outcomes for pair in outcome.records_on("audit")],
        [pair for outcome in outcomes for pair in outcome.records_on("rejected")],
        [pair for outcome in outcomes for pair in outcome.records_on("cleanup")],
    )


def faults(world: World) -> list[str]:
    """Everything that is wrong with a schedule that has come to its end."""
    found: list[str] = []
    for partition, log in enumerate(world.broker.events):
        told = written(world.broker.outcomes[partition])
        checks = (
            refolded(world, partition, told),
            accounted(world, partition, told),
            counted(told, len(log)),
            numbered(told),
            chained(told),
            timeouts(log, told),
        )
        found += [f"partition {partition}: {fault}" for check in checks for fault in check]
        note(world, told)
    found += sunk(world)
    found += steady(world)
    return found


def refolded(world: World, partition: int, told: Written) -> Iterator[str]:
    """What the crash-ridden run wrote is what an uninterrupted fold of the same log writes."""
    log = world.broker.events[partition]
    whole = folded(partition, world.settings, log, max(1, len(log) if world.seed % 2 else 3))
    wanted = written(whole.outcomes)
    for name in ("audits", "rejected", "cleanups"):
        ours, theirs = _unnumbered(getattr(told, name)), _unnumbered(getattr(wanted, name))
        if ours != theirs:
            first = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
            yield f"{len(ours)} {name}, {len(theirs)} in one go; from no. {first}: {ours[first : first + 1]} instead of"
            yield f"    {theirs[first : first + 1]}"
    fold = world.cluster.owner(partition).fold
    yield from compared_rows(fold, whole)


def _unnumbered(lines: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Lines without the number of the transaction: it alone depends on how the log was cut."""
    if lines and isinstance(lines[0][1], AuditRecord):
        return [(key, line._replace(batch_number=0)) for key, line in lines]
    return lines


def accounted(world: World, partition: int, told: Written) -> list[str]:
    """What was written is what the auditor works out from the bytes by itself."""
    if world.shape.extra == "large":
        return []  # the auditor does not weigh states
    account = Account(world.shape.partitions)
    account.books = {partition: account.books[partition]}
    for record in world.broker.events[partition]:
        account.feed(LogEntry(partition, record.offset, record.timestamp_ms, record.key, record.value))
    found = [
        re.sub(r"\{.*\}: ", "", fault)
        for fault in differences(
            account,
            [line._asdict() for _, line in told.audits],
            [line._asdict() for _, line in told.rejected],
            [line._asdict() for _, line in told.cleanups],
        )
    ]
    book = account.books[partition]
    verdicts = Counter(outcome.partition(" ")[0] for outcome in book.outcomes.values())
    for name, field in (("applied", "applied"), ("duplicate", "duplicate"), ("refused", "refused"), ("tick", "ticks")):
        ours = sum(getattr(outcome.counts, field) for outcome in told.outcomes)
        if ours != verdicts[name]:
            found.append(f"{ours} records {name}, {verdicts[name]} by the auditor's account")
    standing = world.cluster.owner(partition).fold.next_deadline_ms
    if standing != book.standing():
        found.append(f"the next deadline is {standing}, not {book.standing()}")
    return found


def counted(told: Written, records: int) -> Iterator[str]:
    """Each record is accounted for once, and transactions leave no number and no offset out."""
    totals = [sum(outcome.counts[n] for outcome in told.outcomes) for n in range(6)]
    applied, duplicate, refused, audited, timers, ticks = totals
    if applied + duplicate + refused + ticks != records:
        yield f"{applied} applied + {duplicate} duplicate + {refused} refused + {ticks} ticks of {records} records"
    if audited != len(told.audits) or refused != len(told.rejected):
        yield f"{audited} audited, {refused} refused by count; {len(told.audits)}, {len(told.rejected)} written"
    if timers != sum(line.due_at is not None for _, line in told.audits):
        yield f"{timers} timers by count"
    numbers = [outcome.position.batch_number for outcome in told.outcomes]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"transactions {numbers}"
    for before, after in pairwise(told.outcomes):
        if after.counts.first_offset < before.position.next_offset:
            yield f"offset {after.counts.first_offset} again after {before.counts.last_offset}"
    if any(
        line.batch_number != outcome.position.batch_number
        for outcome in told.outcomes
        for _, line in outcome.records_on("audit")
    ):
        yield "an audit line names another transaction than its own"


def lives_of(told: Written) -> Iterator[tuple[Life, AuditRecord]]:
    """Each line of a known session with its life: an id may live again once its gravestone is gone."""
    lives: dict[bytes, int] = {}
    gone_us: dict[bytes, int] = {}
    for key, line in told.audits:
        if line.transition == "T01" and line.appended_at >= gone_us.get(key, 1 << 62):
            lives[key] = lives.get(key, 0) + 1
        if line.transition == "T14":
            gone_us[key] = line.appended_at + GRAVESTONE_MS * 1_000
        if line.audit_seq:
            yield (key, lives.get(key, 0)), line


def numbered(told: Written) -> Iterator[str]:
    """Audit numbers have no gap; no line, id or place stands twice; nothing is applied twice."""
    last: dict[Life, int] = {}
    seen: set[Any] = set()
    for life, line in lives_of(told):
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
            line.audit_id if name == "audit_id" else (line.source_offset, line.source_n) for _, line in told.audits
        )
        yield from (f"{name} {mark} stands {times} times" for mark, times in marks.items() if times > 1)


def chained(told: Written) -> Iterator[str]:
    """Each state is the one that the line before led to; epochs only grow; what is archived stays so."""
    before: dict[Life, AuditRecord] = {}
    for life, line in lives_of(told):
        last = before.get(life)
        state, epoch = (last.to_state, last.epoch) if last is not None else ("UNKNOWN", 0)
        if line.from_state != state:
            yield f"{life}, audit no. {line.audit_seq}: from {line.from_state}, but it was {state}"
        if line.epoch < epoch:
            yield f"{life}: epoch {line.epoch} after {epoch}"
        if state == "Archived" and line.kind not in ("refusal", "gap"):
            yield f"{life}: {line.kind} {line.transition} after its archiving"
        before[life] = line


def timeouts(log: list[LogRecord], told: Written) -> Iterator[str]:
    """None twice, none false: worked out from the log alone."""
    fired = [(life, line) for life, line in lives_of(told) if line.due_at is not None]
    once = Counter((life, line.transition, line.epoch, line.due_at) for life, line in fired)
    yield from (f"{timeout} fired {times} times" for timeout, times in once.items() if times > 1)
    if not fired:
        return
    births = {life: line.source_offset for life, line in lives_of(told) if line.transition == "T01"}
    clocks, leaps = _clocks(log)
    signs = _signs_of_life(log, told, clocks, set(births.values()))
    for life, line in fired:
        offset, at = line.source_offset, clocks[line.source_offset]
        due_ms = (line.due_at or 0) // 1_000
        if not due_ms <= at or line.fired_at != at * 1_000:
            yield f"{life}: due {line.due_at}, fired {line.fired_at}, at {at}"
        for leap_offset, leap_ms in leaps:
            if births.get(life, offset) < leap_offset <= offset and at < leap_ms + QUIET_MS:
                yield f"{life}: {line.reason_code} at {at}, though a hole ended at {leap_ms}"
        if line.reason_code == "inactive":
            heard = max((ms for place, ms in signs.get(life[0], ()) if place < offset), default=0)
            budget = _budget(log, births[life])
            if due_ms != heard + budget:
                yield f"{life}: inactive, due {due_ms}, though heard at {heard}; its budget is {budget}"


def _clocks(log: list[LogRecord]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """The log's time at each offset, and where it leapt: (offset, time)."""
    clocks: dict[int, int] = {}
    leaps: list[tuple[int, int]] = []
    now = 0
    for record in log:
        if record.timestamp_ms - now > HOLE_MS:
            leaps.append((record.offset, record.timestamp_ms))
        now = clocks[record.offset] = max(now, record.timestamp_ms)
    return clocks, leaps


def _signs_of_life(
    log: list[LogRecord], told: Written, clocks: dict[int, int], births: set[int]
) -> dict[bytes, list[tuple[int, int]]]:
    """By session, where and when it was heard: neither refused nor heard before."""
    refused = {line.source_offset for _, line in told.rejected}
    heard: dict[bytes, set[tuple[str, int]]] = {}
    signs: dict[bytes, list[tuple[int, int]]] = {}
    for record in log:
        try:
            event_type, fields = read(record.value if record.key else None)
        except No:
            continue
        if event_type == "tick" or record.key is None:
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


def _budget(log: list[LogRecord], birth: int) -> int:
    """Model + tool + network, as the session was created with."""
    created = next(record for record in log if record.offset == birth)
    limits = read(created.value)[1]["limits"]
    parts = (("model_ms", 30_000), ("tool_ms", 20_000), ("network_ms", 10_000))
    return sum(default if limits[name] is None else limits[name] for name, default in parts)


def sunk(world: World) -> Iterator[str]:
    """Each audit line is in ClickHouse once."""
    found = sorted(world.clickhouse.rows, key=lambda row: row[0])
    wanted = [((p, offset), line) for p, log in enumerate(world.broker.audits) for offset, line in log.records]
    if [place for place, _ in found] != [place for place, _ in wanted]:
        twice = [place for place, times in Counter(place for place, _ in found).items() if times > 1]
        lacking = {place for place, _ in wanted} - {place for place, _ in found}
        yield f"ClickHouse has {len(found)} rows of {len(wanted)}; twice: {twice}, lacking: {sorted(lacking)}"
    elif any(a is not b for (_, a), (_, b) in zip(found, wanted, strict=True)):
        yield "ClickHouse has another line than the topic"


def steady(world: World) -> Iterator[str]:
    """Whoever never fell silent was never taken for dead."""
    for attended in world.crowd.attended:
        told = written(world.broker.outcomes[attended.session.partition])
        lines = [line for key, line in told.audits if key == attended.session.encoded]
        if not any(line.transition == "T02" for line in lines):
            continue
        world.seen["steady agent lived"] += 1
        yield from (
            f"steady agent: {line.transition} {line.reason}" for line in lines if line.reason_code == "inactive"
        )


def note(world: World, told: Written) -> None:
    """Count what the outputs show."""
    seen = world.seen
    for _, line in told.audits:
        seen[f"audit: {line.kind}"] += 1
        if line.transition:
            seen[line.transition] += 1
        if line.due_at is not None:
            seen[f"fired: {line.reason_code}"] += 1
    for _, rejected in told.rejected:
        seen[f"refused: {rejected.reason}"] += 1
    seen["records"] += sum(
        o.counts.applied + o.counts.duplicate + o.counts.refused + o.counts.ticks for o in told.outcomes
    )
    seen["duplicate"] += sum(outcome.counts.duplicate for outcome in told.outcomes)
    seen["hole"] += any(outcome.position.quiet_until_ms for outcome in told.outcomes)
    seen["gravestone cleared"] += sum(row is None for outcome in told.outcomes for row in outcome.rows.values())


__all__ = ["faults"]
