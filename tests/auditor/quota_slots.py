"""Slots of tenants' quotas: what the sessions reported of them, and how many were held at once.

The topic of quotas has all that sessions tell of a tenant's claims, in one partition. A slot is
reported to be taken after the worker of quotas has read that another one is free: so in the order
of that log no more may be held than the tenant has. It also has the tokens that were used. Within a
window they only grow: so what asked when they were used up takes no slot in the same window.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.auditor.evidence import Evidence
from tests.auditor.oracle import Oracle

SLOTS_MAX = 5_000  # of a tenant without a limit


class Notice(NamedTuple):
    """What a session reported of a claim of its own or of one of its runs, or of tokens."""

    quota: str
    step: str
    tenant: str
    session: str
    run: str
    offset: int  # of the event that asked, or used tokens
    tokens: int


class Account:
    """The tokens of tenants, by the stamps of the log; `limits` has tokens and window in ms."""

    def __init__(self, limits: dict[str, tuple[int, int]]) -> None:
        self._limits = limits
        self._used: Counter[tuple[str, int]] = Counter()  # by tenant and number of its window
        self._now: dict[str, int] = defaultdict(int)

    def move_clock(self, tenant: str, stamp_ms: int) -> None:
        self._now[tenant] = max(self._now[tenant], stamp_ms)

    def window(self, tenant: str) -> int:
        return self._now[tenant] // self._limits.get(tenant, (0, 1))[1]

    def add(self, tenant: str, tokens: int) -> None:
        self._used[tenant, self.window(tenant)] += tokens

    def is_used_up(self, tenant: str) -> bool:
        limit = self._limits.get(tenant)
        return limit is not None and self._used[tenant, self.window(tenant)] >= limit[0]


def find_slot_faults(evidence: Evidence, oracle: Oracle) -> Iterator[str]:
    """Yield notices that are missing or should not be, and tenants' excess or needless waits."""
    names = ("quota", "step", "tenant_id", "session_id", "run_id", "offset", "tokens")
    rows = [(entry, row) for entry, row in evidence.outputs["quotas"] if "step" in row]
    stamped = [(entry.timestamp_ms, Notice(*(row[name] for name in names))) for entry, row in rows]
    reported = Counter(notice for _, notice in stamped)
    wanted = Counter(Notice(*notice) for partition in oracle.partitions.values() for notice in partition.notices)
    for notice, times in (reported - wanted).items():
        yield f"the quotas were notified {times} times too often: {notice}"
    for notice, times in (wanted - reported).items():
        yield f"the quotas were notified {times} times too rarely: {notice}"
    limits = {"concurrent_runs": evidence.quota_limits, "live_sessions": evidence.session_limits}
    for what, (quota, slots) in zip(("run", "session"), limits.items(), strict=True):
        of_quota = [(stamp, notice) for stamp, notice in stamped if notice.quota == quota]
        yield from find_excess(what, of_quota, slots, Account(evidence.token_limits))


def find_excess(
    what: str, reported: list[tuple[int, Notice]], limits: dict[str, int], account: Account
) -> Iterator[str]:
    """Yield what is wrong with the claims to one quota; `reported` has the stamps of the log in
    ms.
    """
    waiting: dict[str, set[Any]] = defaultdict(set)
    held: dict[str, set[Any]] = defaultdict(set)
    late: dict[Any, int] = {}  # what asked when the tokens of this window were used up
    for stamp, (_, step, tenant, *claim, tokens) in reported:
        name = tuple(claim)
        last = claim[0] if what == "session" else claim[1]
        account.move_clock(tenant, stamp)
        if step == "used":
            account.add(tenant, tokens)
            continue
        waiting[tenant].discard(name)
        held[tenant].discard(name)
        if step == "requested":
            waiting[tenant].add(name)
            if account.is_used_up(tenant):
                late[tenant, name] = account.window(tenant)
        elif step == "taken":
            held[tenant].add(name)
            if len(held[tenant]) > limits.get(tenant, SLOTS_MAX):
                yield f"{len(held[tenant])} {what}s of tenant {tenant} hold a slot since {what} {last} has one"
            if late.get((tenant, name)) == account.window(tenant):
                yield f"{what} {last} of tenant {tenant} has a slot, and asked when its tokens were used up"
    for tenant, names in waiting.items():
        if names and len(held[tenant]) < limits.get(tenant, SLOTS_MAX) and not account.is_used_up(tenant):
            yield f"{len(names)} {what}s of tenant {tenant} wait for ever: {len(held[tenant])} hold a slot"
