"""Two traces side by side: what agrees, and where they part first."""

import json
from typing import Any

import pytest

from sessionary.infra.story.comparison import (
    ALIGNED_MAX,
    LEVELS,
    Divergence,
    Origin,
    Pair,
    Piece,
    Trace,
    common_origin,
    compare_traces,
    make_trace,
)

FOUND = Piece("tool", "search", '{"q":"a"}', '["a"]', "succeeded")
READ = Piece("tool", "read", '{"n":1}', '"text"', "succeeded")
WRITE = Piece("step", "write", "{}", '"report"', "succeeded")


def row(event_type: str, run: str = "r", **payload: Any) -> dict[str, Any]:
    tokens = {"tokens_in": payload.pop("tokens_in", 0), "tokens_out": 0, "cost_usd_nanos": payload.pop("cost", 0)}
    return {"event_type": event_type, "run": run, "payload_json": json.dumps(payload), **tokens}


def call(event_type: str, call_id: str, name: str = "search", **payload: Any) -> dict[str, Any]:
    return row(f"tool_call_{event_type}", tool_call_id=call_id, tool_name=name, **payload)


def trace_of(*pieces: Piece, task: str | None = "report", given: str | None = '"q"', **prompts: str) -> Trace:
    return Trace(pieces, task, given, prompts, None, None, 0, 0, 0, 0)


def test_a_trace_has_calls_and_steps_in_the_order_in_which_they_began_with_totals() -> None:
    trace = make_trace(
        [
            row("run_started", task_type="report", input_json='{"q": 1}', prompt_versions={"ask": "v1"}),
            row("step_started", name="llm m", attempt=0),
            row("step_started", name="collect", attempt=1, input_json="{}"),
            call("started", "1", args_json='{"q": "a", "n": 1}'),
            call("failed", "1", error={"error_class": "retryable", "code": "busy", "message": ""}),
            call("started", "1", args_json='{"q": "a", "n": 1}'),
            call("succeeded", "1", result_json='["x"]'),
            row("step_succeeded", name="collect", attempt=1, output_json="3"),
            call("started", "2", "read", args_json="no JSON"),
            row("usage_recorded", tokens_in=10, cost=5),
            row("usage_recorded", tokens_in=1, cost=1),
            row("llm_decision", prompt_id="choose", prompt_version="v7"),
            row("run_completed", result_json='{"score": 0.5}'),
        ]
    )
    assert trace.pieces == (
        Piece("step", "collect", "{}", "3", "succeeded", 0),
        Piece("tool", "search", '{"n":1,"q":"a"}', '["x"]', "succeeded", 1),
        Piece("tool", "read", "no JSON"),
    )
    assert (trace.task_type, trace.input, trace.prompts) == ("report", '{"q":1}', {"ask": "v1", "choose": "v7"})
    assert (trace.tools, trace.calls, trace.failures) == (["search", "read"], 2, 1)
    assert (trace.model_calls, trace.tokens_in, trace.cost_usd_nanos, trace.score) == (2, 11, 6, 0.5)


@pytest.mark.parametrize(
    ("other", "parted"),
    [
        (READ, (None, None, None)),
        (READ._replace(result='"other"'), (None, None, 2)),
        (READ._replace(state="failed"), (None, None, 2)),
        (READ._replace(arguments='{"n":2}'), (None, 2, 2)),
        (READ._replace(name="fetch"), (2, 2, 2)),
        (READ._replace(kind="step"), (2, 2, 2)),
    ],
)
def test_each_level_has_the_first_place_at_which_traces_part(other: Piece, parted: tuple[int | None, ...]) -> None:
    found = compare_traces([FOUND, READ, WRITE], [FOUND, other, WRITE])
    assert [each and each.number for each in (found.divergences[level] for level in LEVELS)] == list(parted)


def test_what_one_trace_alone_has_moves_nothing_after_it() -> None:
    changed = WRITE._replace(arguments="[]")
    found = compare_traces([FOUND, WRITE], [FOUND, READ, changed])
    assert found.pairs == (Pair(FOUND, FOUND, "result"), Pair(None, READ, ""), Pair(WRITE, changed, "name"))
    assert found.divergences["name"] == Divergence(2, WRITE, READ)


def test_a_trace_that_ends_earlier_parts_at_its_end() -> None:
    found = compare_traces([FOUND], [FOUND, READ])
    assert dict(found.divergences) == dict.fromkeys(LEVELS, Divergence(2, None, READ))
    assert compare_traces([], []).divergences == dict.fromkeys(LEVELS)


def test_long_traces_are_paired_whole_up_to_where_they_part_and_aligned_for_a_bounded_part_after_it() -> None:
    same = [FOUND] * (3 * ALIGNED_MAX)
    one, other = [READ if n % 3 else WRITE for n in range(2 * ALIGNED_MAX)], [WRITE, READ] * ALIGNED_MAX
    found = compare_traces([*same, *one], [*same, *other])
    assert found.is_cut
    assert found.pairs[: len(same)] == tuple(Pair(FOUND, FOUND, "result") for _ in same)
    assert sum(pair.first is not None for pair in found.pairs) == len(same) + 2 + ALIGNED_MAX
    assert not compare_traces(same, same).is_cut


def test_sessions_with_a_common_ancestor_have_a_common_origin() -> None:
    empty = trace_of()
    first, fork, other = Origin(["a"], empty), Origin(["b", "a"], empty), Origin(["c", "d"], empty)
    assert common_origin(first, first) == "both are of session a"
    assert common_origin(fork, first) == common_origin(first, fork) == "both descend from session a"
    assert common_origin(fork, other) is None


@pytest.mark.parametrize(
    ("other", "is_common"),
    [
        (trace_of(ask="v2"), True),
        (trace_of(ask="v2", given='"other"'), False),
        (trace_of(ask="v2", task="other"), False),
        (trace_of(choose="v1"), False),
        (trace_of(), False),
    ],
)
def test_runs_of_one_task_input_and_prompt_have_a_common_origin(other: Trace, is_common: bool) -> None:
    found = common_origin(Origin(["a"], trace_of(ask="v1")), Origin(["b"], other))
    assert found == ("both are of the task report with the same input and the prompt ask" if is_common else None)
