"""Sessions that changed hands: who owned them, and what was accepted of those who own them no more.

Read from the log and from what the processor says of its records alone: which event began an epoch,
and which were rejected. It is the short way to what the oracle finds by judging everything again.

`Evidence.claims` has the sessions that another service took over while their agent was frozen, each
with `tenant_id`, `session_id`, `source`, `target` and the business `key` of the call that it was
in.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.auditor.decoding import Line, Row, read_event
from tests.auditor.evidence import Evidence
from tests.auditor.run_model import RUN_TYPES

Session = tuple[str, str]  # tenant, session
_EPOCH_EXEMPT = ("session_created", "resources_released")
_READ = frozenset(
    {"run_queued", "run_started", "state_updated", "session_created", "snapshot_created", "session_paused"}
    | {"tool_call_succeeded", "tool_call_resolved"}
)


class StaleEvent(NamedTuple):
    """An event of an epoch that was over: what it is, who sent it, and where it is."""

    event_type: str
    service: str
    place: str
    is_rejected: bool


class Trail:
    """What became of one session. Rejected events and repeated deliveries count for `stale`
    only.
    """

    def __init__(self) -> None:
        self.owners: dict[int, set[str]] = {}  # by epoch
        self.epochs: list[int] = []  # of its audit lines, in their order
        self.stale: list[StaleEvent] = []
        self.versions: list[tuple[int, int, str]] = []  # base, version, service
        self.snapshots: list[tuple[str | None, str]] = []  # parent, id
        self.successes: Counter[str] = Counter()  # by key
        self.fenced: Counter[tuple[str, str]] = Counter()  # rejected records by service and reason


def read_trails(evidence: Evidence, lines: Iterable[Line]) -> dict[Session, Trail]:
    """Return what became of each session, by the log and the outputs."""
    trails: dict[Session, Trail] = defaultdict(Trail)
    begun = _read_owners(evidence, trails)
    rejected = set()
    for _, reported in evidence.outputs["rejected"]:
        rejected.add((reported["source_partition"], reported["source_offset"]))
        if reported["service_id"] is not None:
            trails[reported["tenant_id"] or "", reported["session_id"] or ""].fenced[
                reported["service_id"], reported["reason"]
            ] += 1
    known: set[tuple[tuple[str, str, str], int]] = set()
    detached: set[tuple[Session, str]] = set()
    for line in lines:
        envelope, session = line.envelope, line.producer[:2]
        kind, trail = envelope["event_type"], trails[session]
        is_rejected = (line.entry.partition, line.entry.offset) in rejected
        is_repeated = (line.producer, line.seq) in known
        known.add((line.producer, line.seq))
        if is_repeated or line.entry.is_replayed:
            continue
        is_own = kind in RUN_TYPES and (session, envelope["run_id"]) in detached  # it goes on in any epoch
        is_old = envelope["epoch"] < _epoch_at(begun[session], line.entry.offset)
        if is_old and not is_own and kind not in _EPOCH_EXEMPT:
            place = f"{line.entry.partition}/{line.entry.offset}"
            trail.stale.append(StaleEvent(kind, envelope["service_id"], place, is_rejected))
        if is_rejected or kind not in _READ:
            continue
        fields = read_event(line.entry.value)[1]
        if fields.get("mode") == "detached":
            detached.add((session, envelope["run_id"]))
        _note_applied(trail, kind, envelope["service_id"], fields)
    return dict(trails)


def _read_owners(evidence: Evidence, trails: dict[Session, Trail]) -> dict[Session, list[tuple[int, int]]]:
    """Note the owners of all epochs; return where each epoch began: offset, epoch."""
    begun: dict[Session, list[tuple[int, int]]] = defaultdict(list)
    numbered = (line for _, line in evidence.outputs["audit"] if line["audit_seq"])
    for line in sorted(numbered, key=lambda line: line["audit_seq"]):
        session = line["tenant_id"], line["session_id"]
        trail = trails[session]
        trail.epochs.append(line["epoch"])
        if line["epoch"] not in trail.owners:
            begun[session].append((line["source_offset"], line["epoch"]))
        owners = trail.owners.setdefault(line["epoch"], set())
        if line["owner_service"] is not None:
            owners.add(line["owner_service"])
    return begun


def _epoch_at(begun: list[tuple[int, int]], offset: int) -> int:
    """Return the epoch that is in force when the record at an offset is judged; 0 before all."""
    place = bisect_left(begun, (offset, 0))
    return begun[place - 1][1] if place else 0


def _note_applied(trail: Trail, kind: str, service: str, fields: Row) -> None:
    if kind == "state_updated":
        trail.versions.append((fields["base_version"], fields["new_version"], service))
    elif kind == "tool_call_succeeded" or fields.get("outcome") == "succeeded":
        trail.successes[fields["idem_key"]] += 1
    elif (snapshot := fields.get("snapshot")) is not None:
        trail.snapshots.append((snapshot["parent_snapshot_id"], snapshot["snapshot_id"]))


class ClaimFigures(NamedTuple):
    """How many sessions were claimed from frozen agents, and what was tried afterwards."""

    sessions: int  # claimed
    stale: int  # events that their former owners sent
    accepted: int  # events of any session that were of an epoch that was over


def count_stale(trails: dict[Session, Trail], claims: Iterable[Row]) -> ClaimFigures:
    """Return the figures of a run."""
    claimed = [trails.get((claim["tenant_id"], claim["session_id"]), Trail()) for claim in claims]
    accepted = sum(not event.is_rejected for trail in trails.values() for event in trail.stale)
    return ClaimFigures(len(claimed), sum(len(trail.stale) for trail in claimed), accepted)


def find_faults(trails: dict[Session, Trail], claims: Iterable[Row]) -> Iterator[str]:
    """Yield what is wrong with any session, then with those that were claimed."""
    for (_, session), trail in sorted(trails.items()):
        for event in trail.stale:
            if not event.is_rejected:
                what = f"{event.event_type} of {event.service} at {event.place}"
                yield f"{what} is of an epoch that was over; it was accepted"
        for epoch, owners in trail.owners.items():
            if len(owners) > 1:
                yield f"epoch {epoch} of session {session} has the owners {', '.join(sorted(owners))}"
        if trail.epochs != sorted(trail.epochs):
            yield f"the epochs of session {session} fall: {trail.epochs}"
        wanted = [(number, number + 1) for number in range(1, len(trail.versions) + 1)]
        if (found := [(base, version) for base, version, _ in trail.versions]) != wanted:
            yield f"the versions of session {session} are no chain: {found}"
    for claim in claims:
        trail = trails.get((claim["tenant_id"], claim["session_id"]), Trail())
        yield from (f"session {claim['session_id']}: {text}" for text in _find_claim_faults(trail, claim))


def _find_claim_faults(trail: Trail, claim: Row) -> Iterator[str]:
    """Yield what is wrong with a session that was claimed from a frozen agent."""
    source, target, key = claim["source"], claim["target"], claim["key"]
    owners = [owner for _, names in sorted(trail.owners.items()) for owner in sorted(names)]
    if list(dict.fromkeys(owners)) != [source, target]:
        yield f"its owners are {owners}, not {source}, then {target}"
    heads = [name for _, name in trail.snapshots]
    if len(heads) < 2 or [parent for parent, _ in trail.snapshots] != [None, *heads[:-1]]:
        yield f"its snapshots are no chain: {trail.snapshots}"
    if trail.successes[key] != 1:
        yield f"the call under {key} succeeded {trail.successes[key]} times"
    if not {source, target} <= {service for _, _, service in trail.versions}:
        yield f"its content was not changed by both services: {trail.versions}"
