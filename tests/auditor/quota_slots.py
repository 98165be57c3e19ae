"""Slots of tenants' quotas: what the sessions told of them, and how many were held at once.

The topic of quotas has all that sessions tell of a tenant's claims, in one partition. A slot is
told to be taken after the worker of quotas has read that another one is free: so in the order of
that log no more may be held than the tenant has.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.auditor.evidence import Evidence
from tests.auditor.oracle import Oracle

SLOTS_MAX = 5_000  # of a tenant without a limit


class Notice(NamedTuple):
    """What a session told of a claim of its own, or of one of its runs."""

    quota: str
    step: str
    tenant: str
    session: str
    run: str
    offset: int  # of the event that asked


def find_slot_faults(evidence: Evidence, oracle: Oracle) -> Iterator[str]:
    """Yield notices that are missing or should not be, and tenants' excess or needless waits."""
    names = ("quota", "step", "tenant_id", "session_id", "run_id", "offset")
    told = [Notice(*(row[name] for name in names)) for _, row in evidence.outputs["quotas"] if "step" in row]
    wanted = Counter(Notice(*notice) for partition in oracle.partitions.values() for notice in partition.notices)
    for notice, times in (Counter(told) - wanted).items():
        yield f"the quotas were told {times} times too often: {notice}"
    for notice, times in (wanted - Counter(told)).items():
        yield f"the quotas were told {times} times too rarely: {notice}"
    runs = [notice for notice in told if notice.quota == "concurrent_runs"]
    yield from _find_excess("run", runs, evidence.quota_limits)
    sessions = [notice for notice in told if notice.quota == "live_sessions"]
    yield from _find_excess("session", sessions, evidence.session_limits)


def _find_excess(what: str, told: list[Notice], limits: dict[str, int]) -> Iterator[str]:
    waiting: dict[str, set[Any]] = defaultdict(set)
    held: dict[str, set[Any]] = defaultdict(set)
    for _, step, tenant, *claim in told:
        name = tuple(claim)
        waiting[tenant].discard(name)
        held[tenant].discard(name)
        if step == "requested":
            waiting[tenant].add(name)
        elif step == "taken":
            held[tenant].add(name)
            if len(held[tenant]) > limits.get(tenant, SLOTS_MAX):
                last = claim[0] if what == "session" else claim[1]
                yield f"{len(held[tenant])} {what}s of tenant {tenant} hold a slot since {what} {last} has one"
    for tenant, names in waiting.items():
        if names and len(held[tenant]) < limits.get(tenant, SLOTS_MAX):
            yield f"{len(names)} {what}s of tenant {tenant} wait for ever: {len(held[tenant])} hold a slot"


__all__ = ["SLOTS_MAX", "find_slot_faults"]
