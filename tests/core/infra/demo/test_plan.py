from collections import Counter
from dataclasses import dataclass

import pytest

from sessionary.infra.demo.plan import BROKEN, EXPECTED, ILLEGAL, SILENT, PlannedOutcome, limits_for, make_plan
from sessionary.infra.demo.runs import ModelCall, Run, ToolCall, sample_runs
from sessionary.infra.environment import TENANTS
from sessionary.schemas.ids import given_session_id, valid_name


def _run(number: int, start_s: float = 0.0, steps: int = 12) -> Run:
    calls = tuple(
        ModelCall(10.0 * n, 100 + n, 10) if n % 3 else ToolCall(10.0 * n, "search", n % 2 == 0) for n in range(steps)
    )
    return Run(f"task/{number}", "task", 10.0 * steps, start_s, calls)


def _runs(count: int) -> list[Run]:
    return [_run(n, start_s=7.0 * n) for n in range(count)]


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    runs = _runs(40)
    assert make_plan(runs, demo_id="p", seed=3) == make_plan(runs, demo_id="p", seed=3)
    outcomes = [[session.outcome for session in make_plan(runs, demo_id="p", seed=seed).sessions] for seed in (3, 4)]
    assert outcomes[0] != outcomes[1]


def test_session_ids_are_uuids_of_the_demo_run_and_of_nothing_else() -> None:
    first, again, other = (make_plan(_runs(30), demo_id=demo, seed=1).sessions for demo in ("a", "a", "b"))
    ids = [session.session_id for session in first]
    assert ids == [session.session_id for session in again]
    assert not set(ids) & {session.session_id for session in other}
    assert len(set(ids)) == 30
    assert all(given_session_id("acme", session_id) == (session_id, None) for session_id in ids)


def test_six_sessions_show_every_kind_of_outcome() -> None:
    outcomes = {session.outcome for session in make_plan(_runs(6), demo_id="p").sessions}
    assert outcomes == {"completed", "silent", "paused", "illegal", "recovered", "failed_start"}


def test_most_of_many_sessions_finish_and_every_outcome_occurs() -> None:
    counts = Counter(session.outcome for session in make_plan(_runs(200), demo_id="p").sessions)
    assert set(counts) == set(EXPECTED)
    finished = sum(counts[outcome] for outcome in EXPECTED if EXPECTED[outcome][-1] == "T13")
    assert finished > 0.7 * 200
    assert sum(counts[outcome] for outcome in SILENT) >= 0.1 * 200


def test_actions_of_a_session_never_go_back_in_time() -> None:
    for session in make_plan(sample_runs(60), demo_id="p").sessions:
        times = [action.at_s for action in session.actions]
        assert times == sorted(times), session.outcome
        assert times[0] >= 0


@dataclass(frozen=True)
class Shape:
    outcome: PlannedOutcome
    first: tuple[str, ...]
    last: str
    holds: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


SHAPES = (
    Shape("completed", ("create", "start"), "complete", lacks=("pause", "error", "silence", "illegal", "broken")),
    Shape("closed", ("create", "start"), "close"),
    Shape("cancelled", ("create", "start"), "cancel", lacks=("complete",)),
    Shape("paused", ("create", "start"), "complete", holds=("pause", "resume")),
    Shape("silent", ("create", "start"), "silence", lacks=("complete", "close")),
    Shape("recovered", ("create", "start"), "complete", holds=("error", "recover")),
    Shape("gave_up", ("create", "start"), "give_up", holds=("error",), lacks=("recover",)),
    Shape("failed_start", ("create", "fail_start"), "fail_start", lacks=("start",)),
    Shape("never_started", ("create", "silence"), "silence", lacks=("start",)),
    Shape("illegal", ("create", "start"), "complete", holds=("illegal", "broken")),
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.outcome)
def test_each_outcome_has_its_shape(shape: Shape) -> None:
    plan = make_plan(_runs(200), demo_id="p")
    sessions = [session for session in plan.sessions if session.outcome == shape.outcome]
    assert sessions
    for session in sessions:
        verbs = tuple(action.verb for action in session.actions)
        assert verbs[: len(shape.first)] == shape.first
        assert verbs[-1] == shape.last
        assert set(shape.holds) <= set(verbs)
        assert not set(shape.lacks) & set(verbs)
        assert session.silent == ("silence" in verbs)


@pytest.mark.parametrize("steps", [1, 3, 30])
def test_an_illegal_session_sends_every_illegal_event_and_every_broken_record_before_its_end(steps: int) -> None:
    plan = make_plan([_run(n, steps=steps) for n in range(6)], demo_id="p")
    (session,) = [session for session in plan.sessions if session.outcome == "illegal"]
    named = [(action.verb, action.name) for action in session.actions if action.verb in ("illegal", "broken")]
    assert named == [*(("illegal", name) for name in ILLEGAL), *(("broken", name) for name in BROKEN)]


def test_every_step_of_a_run_is_planned_with_its_tokens() -> None:
    runs = _runs(1)
    (session,) = make_plan(runs, demo_id="p").sessions
    calls = [(action.tokens_in, action.tokens_out) for action in session.actions if action.verb == "model_call"]
    assert calls == [(step.tokens_in, step.tokens_out) for step in runs[0].steps if isinstance(step, ModelCall)]
    tools = [(action.name, action.succeeded) for action in session.actions if action.verb == "tool_call"]
    assert tools == [(step.name, step.succeeded) for step in runs[0].steps if isinstance(step, ToolCall)]


def test_speed_shortens_the_demo_run_in_proportion() -> None:
    slow, fast = (make_plan(_runs(1), demo_id="p", speed=speed).duration_s for speed in (1.0, 10.0))
    assert slow == pytest.approx(120, abs=1)
    assert fast == pytest.approx(12, abs=1)


def test_starts_keep_their_recorded_distance_up_to_the_longest_gap() -> None:
    runs = [_run(0, 100.0), _run(1, 104.0), _run(2, 9_000.0)]
    sessions = make_plan(runs, demo_id="p", speed=2.0, gap_s_max=10.0).sessions
    assert [session.actions[0].at_s for session in sessions] == [0.0, 2.0, 7.0]


@pytest.mark.parametrize("speed", [0.5, 1.0, 20.0, 60.0, 5_000.0])
def test_the_inactivity_budget_never_falls_below_nine_seconds(speed: float) -> None:
    limits = limits_for(speed)
    parts = (limits.model_ms, limits.tool_ms, limits.network_ms)
    assert all(part is not None and part > 0 for part in parts)
    assert sum(part or 0 for part in parts) == pytest.approx(max(60_000 / speed, 9_000), abs=3)
    assert limits.override == (speed != 1.0)


def test_at_real_speed_the_limits_are_the_defaults() -> None:
    limits = limits_for(1.0)
    assert (limits.init_ms, limits.idle_ms, limits.grace_ms) == (15_000, 900_000, 300_000)
    assert (limits.recovery_ms, limits.archive_delay_ms, limits.hold_ms) == (60_000, 60_000, 86_400_000)


def test_a_recovery_ends_before_its_clock_and_a_pause_before_its_own() -> None:
    for speed in (1.0, 60.0, 600.0):
        for session in make_plan(_runs(100), demo_id="p", speed=speed).sessions:
            at = {action.verb: action.at_s for action in session.actions}
            if "recover" in at:
                assert (at["recover"] - at["error"]) * 1_000 < (session.limits.recovery_ms or 0) / 1.5
            if "resume" in at:
                assert (at["resume"] - at["pause"]) * 1_000 < (session.limits.hold_ms or 0) / 2


@pytest.mark.parametrize("speed", [0.0, -1.0])
def test_a_speed_of_nothing_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="not above 0"):
        make_plan(_runs(1), demo_id="p", speed=speed)


def test_a_service_belongs_to_one_tenant_and_all_names_are_valid() -> None:
    services = [service for names, _ in TENANTS.values() for service in names]
    assert len(services) == len(set(services))
    assert all(valid_name(name) for name in (*TENANTS, *services))
