"""Minutes of chaos on a real stack, and the parts of the harness that need no stack."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos.faults import written_bytes
from tests.chaos.one_minute import RUN_S_MAX, run_chaos
from tests.chaos.schedule import (
    AGENTS,
    CHOSEN_ONLY,
    KINDS,
    SHORT_S,
    Fault,
    count_required,
    draw_faults,
    find_rare_kinds,
    kinds_in_deck,
)
from tests.support.processes import Processes

SEED = 1
MINUTES = 10
KINDS_MIN = 4


@pytest.mark.timeout(RUN_S_MAX + 120)
def test_sixty_seconds_of_chaos_lose_and_double_nothing(processes: Processes, tmp_path: Path) -> None:
    # On a busy machine the stack recovers slowly; the schedule waits for that, and then goes on.
    result = run_chaos(processes, tmp_path, SEED, "--kinds-min", str(KINDS_MIN))
    assert len({fault["kind"] for fault in result["outcomes"]}) >= KINDS_MIN
    assert result["events"] > 1_000
    assert result["timeouts"] > 0
    assert result["rejections"] > 0


@pytest.mark.timeout(RUN_S_MAX + 120)
def test_what_an_agent_sends_after_its_session_was_taken_over_is_not_accepted(
    processes: Processes, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Real processes: SIGSTOP inside a tool call, a take-over by another one, SIGCONT."""
    record_property("seed", SEED + 1)
    result = run_chaos(processes, tmp_path, SEED + 1, "--only", "freeze agent")
    claims = result["claims"]
    assert claims["sessions"] >= 1
    assert claims["stale"] >= 1  # an agent that hears of it before it goes on sends nothing
    assert claims["accepted"] == 0


@pytest.mark.timeout(RUN_S_MAX + 60 * MINUTES + 60)
def test_ten_minutes_of_chaos_lose_and_double_nothing(
    processes: Processes, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("seed", SEED + 3)
    result = run_chaos(processes, tmp_path, SEED + 3, minutes=MINUTES)
    assert result["events"] > 10_000


def test_the_same_seed_draws_the_same_faults() -> None:
    assert draw_faults(3, 600) == draw_faults(3, 600)
    assert draw_faults(3, 600) != draw_faults(4, 600)


@pytest.mark.parametrize("seed", range(1, 30))
def test_ten_minutes_have_all_kinds_of_faults_and_one_minute_the_important_ones(seed: int) -> None:
    assert {fault.kind for fault in draw_faults(seed, 600)} == set(KINDS) - CHOSEN_ONLY
    brief = draw_faults(seed, 60)
    assert len({fault.kind for fault in brief}) >= 6
    assert all(4 <= fault.at_s <= 53 for fault in brief)
    assert [fault.at_s for fault in brief] == sorted(fault.at_s for fault in brief)
    assert SHORT_S > 60


@pytest.mark.parametrize("seed", range(1, 30))
def test_each_kind_comes_three_times_before_any_comes_a_fifth_time(seed: int) -> None:
    """So a slow machine, which leaves out the last faults, still has three of each kind."""
    drawn = draw_faults(seed, 600)
    for_agents = {n for n, fault in enumerate(drawn[1:]) if fault.kind == "kill agent"}  # brokers killed for them
    seen: Counter[str] = Counter()
    for n, fault in enumerate(drawn):
        seen[fault.kind] += n not in for_agents
        if seen[fault.kind] == 5:
            break
    assert set(seen) == set(KINDS) - CHOSEN_ONLY
    assert min(seen.values()) >= 3


def test_a_run_with_too_few_faults_of_a_kind_names_it() -> None:
    deck = kinds_in_deck(600)
    enough = [*deck * 3]
    assert find_rare_kinds(enough, deck, 10) == []
    assert find_rare_kinds(enough[1:], deck, 10) == [f"{deck[0]} happened 2 times in 10 minutes, must be 3"]
    assert find_rare_kinds((), deck, 3.3) == []
    assert find_rare_kinds((), deck[2:3], 3.4) == ["kill sink happened 0 times in 3.4 minutes, must be 1"]
    assert [count_required(minutes) for minutes in (1, 5, 10, 20)] == [0, 1, 3, 6]


def test_the_first_agent_is_never_killed_and_the_others_only_while_the_broker_is_down() -> None:
    faults = draw_faults(5, 3_600)
    assert not [fault for fault in faults if fault.target == AGENTS[0]]
    for before, fault in pairwise(faults):
        if fault.kind == "kill agent":
            assert (before.kind, round(fault.at_s - before.at_s)) == ("kill broker", 1)


def test_a_broker_fault_hits_one_of_three_brokers_by_the_seed() -> None:
    brokers = ("broker-1", "broker-2", "broker-3")
    faults = draw_faults(5, 3_600, (), brokers)
    assert faults == draw_faults(5, 3_600, (), brokers)
    for kind in ("kill broker", "restart broker", "freeze broker", "cut network", "reset connections"):
        assert {fault.target for fault in faults if fault.kind == kind} == set(brokers)


def test_a_freeze_is_longer_than_the_session_timeout() -> None:
    frozen = [fault for fault in draw_faults(6, 3_600) if fault.kind == "freeze processor"]
    assert frozen
    assert min(fault.lasts_s for fault in frozen) > 6
    assert Fault(1.0, "kill broker", "broker").lasts_s == 0


def test_a_broker_stalls_for_shorter_and_longer_than_any_session_timeout() -> None:
    frozen = [fault.lasts_s for fault in draw_faults(6, 3_600) if fault.kind == "freeze broker"]
    assert 5 <= min(frozen) < 10
    assert 30 < max(frozen) <= 40
    cut = [fault for fault in draw_faults(6, 3_600) if fault.kind == "cut network"]
    assert all(fault.lasts_s >= 5 for fault in cut)


def test_written_bytes_of_a_segment_end_at_its_end_mark() -> None:
    frame = (5).to_bytes(4, "big") + bytes(4) + b"hello"
    assert written_bytes(frame * 3 + bytes(50)) == 3 * len(frame)
    assert written_bytes(bytes(50)) == 0
