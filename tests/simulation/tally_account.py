"""The account of the second machine's rows, from the log alone: it shares no code with the machine.

Every message of a session is refused, or counted in exactly one tally: in one that was closed, or
in the one that is still open. Does nothing in a world without that machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tests.auditor.decoding import Refusal, key_parts, read_event
from tests.simulation.adapter import LogRecord, Outcome
from tests.support.tally_machine import (
    CLOSED,
    KEY_SUFFIX,
    TALLIED_TYPE,
    TALLY_SERVICE,
    Tally,
    TallyMachine,
    tally_key,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

Message = tuple[int, int]  # offset, log time in ms


def tally_machine_of(world: World) -> TallyMachine | None:
    return next((machine for machine in world.machines if isinstance(machine, TallyMachine)), None)


def check_tallies(
    world: World,
    partition: int,
    rejected: Sequence[tuple[bytes | None, Any]],
    cleanups: Sequence[tuple[bytes, Any]],
) -> Iterator[str]:
    """Each message is counted once, a tally closes after its silence, its stub refuses messages."""
    machine = tally_machine_of(world)
    if machine is None:
        return
    refused = {record.source_offset for _, record in rejected if record.detail == CLOSED}
    requests: dict[bytes, list[Any]] = defaultdict(list)
    for key, request in cleanups:
        if request.service_id == TALLY_SERVICE:
            requests[key].append(request)
    rows = world.cluster.owner(partition).fold.rows
    messages = messages_by_key(world.broker.events[partition])
    for key in sorted(messages.keys() | requests.keys()):
        row = rows.get(tally_key(key))
        still_open = row.messages if isinstance(row, Tally) else 0
        for fault in _check_tally(machine, messages.get(key, []), refused, requests[key], still_open):
            yield f"tally of {key!r}: {fault}"


def messages_by_key(log: Sequence[LogRecord]) -> dict[bytes, list[Message]]:
    """Return the valid messages of each session, in log order."""
    found: dict[bytes, list[Message]] = defaultdict(list)
    now_ms = 0
    for record in log:
        now_ms = max(now_ms, record.timestamp_ms)
        try:
            event_type, fields = read_event(record.value)
        except Refusal:
            continue
        if event_type != TALLIED_TYPE or record.key is None:
            continue
        envelope = fields["envelope"]
        if key_parts(record.key) == (envelope["tenant_id"], envelope["session_id"]):
            found[record.key].append((record.offset, now_ms))
    return found


def _check_tally(
    machine: TallyMachine, messages: Sequence[Message], refused: set[int], requests: Sequence[Any], still_open: int
) -> Iterator[str]:
    counted = [at_ms for offset, at_ms in messages if offset not in refused]
    sizes = [int(request.cleanup_id.rpartition(":")[2]) for request in requests]
    if sum(sizes) + still_open != len(counted):
        yield f"closed with {sizes}, {still_open} in the open one, of {len(counted)} messages"
        return
    stubs = [(request.requested_at // 1_000, request.requested_at // 1_000 + machine.stub_ms) for request in requests]
    taken = 0
    for size, (closed_ms, vanishes_ms) in zip(sizes, stubs, strict=True):
        taken += size
        if not size or closed_ms < counted[taken - 1] + machine.silence_ms:
            yield f"closed at {closed_ms}, after {size} messages, the last at {counted[taken - 1]}"
        if taken < len(counted) and counted[taken] < vanishes_ms:
            yield f"a message of {counted[taken]} is counted, though the tally was closed until {vanishes_ms}"
    for offset, at_ms in messages:
        if offset in refused and not any(closed_ms <= at_ms < vanishes_ms for closed_ms, vanishes_ms in stubs):
            yield f"the message of {at_ms} is refused, though no tally was closed then"


def count_tallies(world: World, outcomes: Sequence[Outcome]) -> None:
    """Count what occurred to tallies."""
    if tally_machine_of(world) is None:
        return
    for outcome in outcomes:
        for _, request in outcome.records_on("cleanup"):
            world.seen["tally: closed"] += request.service_id == TALLY_SERVICE
        for _, record in outcome.records_on("rejected"):
            world.seen["tally: message refused"] += record.detail == CLOSED
        for key, row in outcome.rows.items():
            world.seen["tally: stub vanished"] += key.endswith(KEY_SUFFIX) and row is None
