"""The auditor's account of tenants' slots."""

import pytest

from tests.auditor.decoding import LogEntry, Row
from tests.auditor.evidence import OUTPUTS, Evidence
from tests.auditor.oracle import Oracle
from tests.auditor.quota_slots import find_slot_faults

# Run a takes the slot, run b waits for it; after a has ended, b takes it.
RIGHT = ["requested a", "requested b", "taken a", "released a", "taken b"]


def faults(reported: list[str], heard: list[str] = RIGHT, limit: int = 1, quota: str = "concurrent_runs") -> list[str]:
    """Return what is wrong with a topic of quotas; `heard`: what the sessions' own logs say."""
    is_run = quota == "concurrent_runs"
    oracle = Oracle(1)
    rows: list[tuple[LogEntry, Row]] = [(LogEntry(0, 0, 0, None, b""), {"instance": "q1"})]  # a tick
    for offset, text in enumerate(reported, 1):
        step, name = text.split()
        names = {"session_id": "s", "run_id": name} if is_run else {"session_id": name, "run_id": ""}
        row = {"quota": quota, "step": step, "tenant_id": "acme", **names, "offset": 7, "tokens": 0}
        rows.append((LogEntry(0, offset, 0, b"acme/quota", b""), row))
    for text in heard:
        step, name = text.split()
        oracle.partitions[0].notices.append((quota, step, "acme", *(("s", name) if is_run else (name, "")), 7, 0))
    outputs = {**{name: list[tuple[LogEntry, Row]]() for name in OUTPUTS}, "quotas": rows}
    runs, sessions = ({"acme": limit}, {}) if is_run else ({}, {"acme": limit})
    evidence = Evidence(1, [], outputs, {}, {}, [], {}, quota_limits=runs, session_limits=sessions)
    return list(find_slot_faults(evidence, oracle))


def test_a_slot_that_is_handed_on_is_right() -> None:
    assert faults(RIGHT) == []


@pytest.mark.parametrize("n", range(len(RIGHT)))
def test_what_a_session_tells_comes_once(n: int) -> None:
    notice = f"Notice(quota='concurrent_runs', step={RIGHT[n].split()[0]!r}"
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


def token_faults(reported: list[tuple[int, str, str]], limit: int = 100, window_ms: int = 1_000) -> list[str]:
    """Return what is wrong with a log of quotas: stamp, step, and the run or the tokens."""
    oracle, rows = Oracle(1), list[tuple[LogEntry, Row]]()
    for offset, (stamp_ms, step, what) in enumerate(reported):
        run, tokens = ("", int(what)) if step == "used" else (what, 0)
        notice = ("concurrent_runs", step, "acme", "s", run, offset if step == "used" else 7, tokens)
        names = ("quota", "step", "tenant_id", "session_id", "run_id", "offset", "tokens")
        rows.append(
            (LogEntry(0, offset, stamp_ms, b"acme/concurrent_runs", b""), dict(zip(names, notice, strict=True)))
        )
        oracle.partitions[0].notices.append(notice)
    outputs = {**{name: list[tuple[LogEntry, Row]]() for name in OUTPUTS}, "quotas": rows}
    evidence = Evidence(1, [], outputs, {}, {}, [], {}, token_limits={"acme": (limit, window_ms)})
    return list(find_slot_faults(evidence, oracle))


def test_no_run_takes_a_slot_in_the_window_whose_tokens_were_used_up_when_it_asked() -> None:
    used_up = [(5_000, "used", "60"), (5_001, "used", "40"), (5_002, "requested", "a")]
    assert token_faults([*used_up, (5_999, "taken", "a")]) == [
        "run a of tenant acme has a slot, and asked when its tokens were used up"
    ]
    assert token_faults([*used_up, (6_000, "taken", "a")]) == []
    assert token_faults([*used_up, (5_999, "taken", "a")], limit=101) == []
    early = [(5_000, "used", "60"), (5_001, "requested", "a"), (5_002, "used", "40"), (5_003, "taken", "a")]
    assert token_faults(early) == []


def test_a_run_waits_while_tokens_are_used_up_and_not_for_ever() -> None:
    waiting = [(5_000, "used", "100"), (5_001, "requested", "a")]
    assert token_faults(waiting) == []
    forgotten = [*waiting, (6_000, "used", "1")]
    assert token_faults(forgotten) == ["1 runs of tenant acme wait for ever: 0 hold a slot"]


def test_live_sessions_have_slots_of_their_own() -> None:
    early = ["requested a", "requested b", "taken a", "taken b", "released a"]
    found = faults(early, early, quota="live_sessions")
    assert found == ["2 sessions of tenant acme hold a slot since session b has one"]
    assert faults(RIGHT, RIGHT, quota="live_sessions") == []
    forgotten = faults(RIGHT[:-1], RIGHT[:-1], quota="live_sessions")
    assert forgotten == ["1 sessions of tenant acme wait for ever: 0 hold a slot"]
