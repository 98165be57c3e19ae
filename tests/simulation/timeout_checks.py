"""No timeout is doubled or false, computed from the log alone."""

from collections import Counter
from collections.abc import Iterator

from tests.auditor.decoding import ACTIVATION, SKIPS, VERDICT, Decision, Rejection, decisions_of, read_event
from tests.simulation.adapter import LogRecord
from tests.simulation.outputs import Life, Written, decisions_in, lives_of
from tests.simulation.world import OUTAGE_GRACE_MS, OUTAGE_MS

_ANSWERS = frozenset({"approved", "denied", "expired"})
_HOLD_MS = 24 * 3_600_000


def check_timeouts(log: list[LogRecord], outputs: Written) -> Iterator[str]:
    """No timeout is doubled or false, computed from the log alone."""
    fired = [(life, line) for life, line in lives_of(outputs) if line.due_at is not None]
    once = Counter(
        (life, line.transition, line.run_id, line.idem_key, line.step_name, line.epoch, line.due_at)
        for life, line in fired
    )
    yield from (f"{timeout} fired {times} times" for timeout, times in once.items() if times > 1)
    if not fired:
        return
    births = {life: line.source_offset for life, line in lives_of(outputs) if line.transition == "T01"}
    settings = [one for one in decisions_of(line._asdict() for line in decisions_in(outputs)) if not one.version]
    repairs = [one for one in settings if one.event_type not in SKIPS]
    clocks, leaps = _clocks(log, settings)
    signs = _signs_of_life(log, outputs, clocks, set(births.values()))
    for life, line in lives_of(outputs):
        # Its silence counts from here on, whatever resumed it.
        if line.transition in ("T05", "T07") or line.migration_step == "completed":
            signs.setdefault(life[0], []).append((line.source_offset, clocks[line.source_offset]))
    answers: dict[Life, list[tuple[tuple[int, int], int]]] = {}
    for life, line in lives_of(outputs):
        if line.transition == "T05" and line.reason_code in _ANSWERS:
            ms = clocks[line.source_offset] if line.due_at is None else line.due_at // 1_000
            answers.setdefault(life, []).append(((line.source_offset, line.source_n), ms))
    for life, line in fired:
        offset, at = line.source_offset, clocks[line.source_offset]
        due_ms = (line.due_at or 0) // 1_000
        if not due_ms <= at or line.fired_at != at * 1_000:
            yield f"{life}: due {line.due_at}, fired {line.fired_at}, at {at}"
        # Times before a repair are of another clock: all clocks of activity count from it.
        repaired = max((repair.offset for repair in repairs if repair.offset <= offset), default=0)
        outages = [(place, ms) for place, ms in leaps if repaired <= place <= offset]
        for leap_offset, leap_ms in outages:
            if births.get(life, offset) < leap_offset and at < leap_ms + OUTAGE_GRACE_MS:
                yield f"{life}: {line.reason_code} at {at}, though an outage ended at {leap_ms}"
        if line.reason_code == "inactive":
            heard = max((ms for place, ms in signs.get(life[0], ()) if repaired <= place < offset), default=0)
            budget = _budget(log, births[life])
            # The silence counts from the end of an outage: no agent could be heard before.
            since = {heard, *(ms for _, ms in outages if ms > heard)}
            # An answer that none has heard leaves its agent as long as the question had.
            unheard = {ms for place, ms in answers.get(life, ()) if place < (offset, line.source_n) and ms > heard}
            patience = max(budget, _limits(log, births[life])["hold_ms"] or _HOLD_MS)
            if due_ms - budget not in since and due_ms - patience not in since | unheard:
                yield f"{life}: inactive, due {due_ms}, though heard at {heard}; its budget is {budget}"


def _clocks(log: list[LogRecord], settings: list[Decision]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return the log's time at each offset, and the ends of outages as (offset, time).

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
            if setting.clock_ms - now > OUTAGE_MS:
                leaps.append((setting.offset, setting.clock_ms))
            now = max(now, setting.clock_ms)
        stamp_ms = record.timestamp_ms if record.offset >= believed_from else now
        if stamp_ms - now > OUTAGE_MS:
            leaps.append((record.offset, stamp_ms))
        now = clocks[record.offset] = max(now, stamp_ms)
    return clocks, leaps


def _signs_of_life(
    log: list[LogRecord], outputs: Written, clocks: dict[int, int], births: set[int]
) -> dict[bytes, list[tuple[int, int]]]:
    """Return by session the (offset, time) of events that were not rejected or duplicate.

    A step of a migration is none, nor is a beat of an epoch in which its sender was rejected
    before.
    """
    rejected = {line.source_offset: line.reason for _, line in outputs.rejected}
    fenced: dict[tuple[bytes, str], int] = {}  # the last epoch in which a client was rejected a beat
    heard: dict[bytes, set[tuple[str, int]]] = {}
    signs: dict[bytes, list[tuple[int, int]]] = {}
    for record in log:
        try:
            event_type, fields = read_event(record.value if record.key else None)
        except Rejection:
            continue
        if event_type in ("tick", VERDICT, ACTIVATION) or record.key is None:
            continue
        if record.offset in births:
            heard[record.key] = set()
            fenced = {client: epoch for client, epoch in fenced.items() if client[0] != record.key}
        mark = (fields["envelope"]["producer_id"], fields["envelope"]["producer_seq"])
        known = heard.setdefault(record.key, set())
        is_none, client = event_type.startswith("session_migration_"), (record.key, mark[0])
        if event_type == "heartbeat":
            is_none = fields["envelope"]["epoch"] <= fenced.get(client, 0)
            if rejected.get(record.offset) == "stale_epoch":
                fenced[client] = max(fenced.get(client, 0), fields["envelope"]["epoch"])
        if record.offset not in rejected and not is_none and (event_type == "heartbeat" or mark not in known):
            signs.setdefault(record.key, []).append((record.offset, clocks[record.offset]))
        if event_type != "heartbeat":
            known.add(mark)
    return signs


def _budget(log: list[LogRecord], birth: int) -> int:
    """Return the session's model + tool + network limits, in ms."""
    limits = _limits(log, birth)
    parts = (("model_ms", 30_000), ("tool_ms", 20_000), ("network_ms", 10_000))
    return sum(limits[name] or default for name, default in parts)


def _limits(log: list[LogRecord], birth: int) -> dict[str, int | None]:
    created = next(record for record in log if record.offset == birth)
    limits: dict[str, int | None] = read_event(created.value)[1]["limits"]
    return limits
