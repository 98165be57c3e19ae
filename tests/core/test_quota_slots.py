"""The auditor's account of tenants' slots."""

import pytest

from tests.auditor.decoding import LogEntry, Row
from tests.auditor.evidence import OUTPUTS, Evidence
from tests.auditor.oracle import Oracle
from tests.auditor.quota_slots import find_slot_faults

# Run a takes the slot, run b waits for it; after a has ended, b takes it.
RIGHT = ["requested a", "requested b", "taken a", "released a", "taken b"]


def faults(told: list[str], heard: list[str] = RIGHT, limit: int = 1) -> list[str]:
    """Return what is wrong with a topic of quotas; `heard`: what the sessions' own logs say."""
    oracle = Oracle(1)
    rows: list[tuple[LogEntry, Row]] = [(LogEntry(0, 0, 0, None, b""), {"instance": "q1"})]  # a tick
    for offset, text in enumerate(told, 1):
        step, run = text.split()
        row = {"step": step, "tenant_id": "acme", "session_id": "s", "run_id": run, "offset": 7}
        rows.append((LogEntry(0, offset, 0, b"acme/concurrent_runs", b""), row))
    for text in heard:
        step, run = text.split()
        oracle.partitions[0].notices.append((step, "acme", "s", run, 7))
    outputs = {**{name: list[tuple[LogEntry, Row]]() for name in OUTPUTS}, "quotas": rows}
    evidence = Evidence(1, [], outputs, {}, {}, [], {}, quota_limits={"acme": limit})
    return list(find_slot_faults(evidence, oracle))


def test_a_slot_that_is_handed_on_is_right() -> None:
    assert faults(RIGHT) == []


@pytest.mark.parametrize("n", range(len(RIGHT)))
def test_what_a_session_tells_comes_once(n: int) -> None:
    notice = f"Notice(step={RIGHT[n].split()[0]!r}"
    assert any(f"1 times too rarely: {notice}" in text for text in faults([*RIGHT[:n], *RIGHT[n + 1 :]]))
    assert any(f"1 times too often: {notice}" in text for text in faults([*RIGHT[:n], RIGHT[n], *RIGHT[n:]]))


def test_a_tenant_has_no_more_runs_than_slots() -> None:
    early = ["requested a", "requested b", "taken a", "taken b", "released a"]
    assert faults(early, early) == ["2 runs of tenant acme hold a slot since run b has one"]
    assert faults(early, early, limit=2) == []


def test_no_run_waits_for_ever_while_a_slot_is_free() -> None:
    forgotten = RIGHT[:-1]
    assert faults(forgotten, forgotten) == ["1 runs of tenant acme wait for ever: 0 hold a slot"]
    full = RIGHT[:-2]
    assert faults(full, full) == []
