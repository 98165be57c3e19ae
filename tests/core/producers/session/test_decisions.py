"""`Session.decision`: what was chosen, from what, and which tool calls follow from it."""

import asyncio
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, tool, traced
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import LlmDecision
from sessionary.schemas.types import Candidate
from tests.core.producers.sent_events import sent_types

SCORES = {"X": 0.92, "Y": 0.78, "Z": 0.81}
USE: dict[str, Any] = {
    "model": "m",
    "prompt_id": "recommend",
    "prompt_version": "v2",
    "parameters": {"temperature": 0},
    "tokens_in": 900,
    "tokens_out": 12,
    "model_cost_usd_nanos": 4_000_000,
}
INPUTS = {"preference": "quiet", "similar_profiles": 50}


@tool(effect="write")
def order(item: str) -> str:
    return f"ordered {item}"


@traced("tool", side_effect=True)
def notify(item: str) -> str:
    return f"told of {item}"


def causes(memory: InMemoryTransport, event_type: str = "tool_call_started") -> list[str | None]:
    return [each.envelope.causation_id for each in memory.events() if each.envelope.event_type == event_type]


def test_a_decision_records_what_it_was_made_from_and_with() -> None:
    """R-004-53."""
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        decision = session.decision(
            "X", candidates=SCORES, threshold=0.85, tools=["order"], inputs=INPUTS, reason="quiet, and near", **USE
        )
    (event,) = [each for each in memory.events() if isinstance(each.payload, LlmDecision)]
    assert event.envelope.event_id == decision.decision_id
    assert event.payload == LlmDecision(
        "m",
        ("order",),
        '{"preference":"quiet","similar_profiles":50}',
        (Candidate("X", 0.92), Candidate("Y", 0.78), Candidate("Z", 0.81)),
        0.85,
        "X",
        "quiet, and near",
        "recommend",
        "v2",
        '{"temperature":0}',
        900,
        12,
        4_000_000,
    )
    assert memory.rejections() == []


def test_tool_calls_in_the_block_name_the_decision_which_precedes_them_also_within_steps() -> None:
    """R-004-60."""
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("shop") as run:
        with session.decision("X", candidates=SCORES) as first:
            order("X")
            run.step("tell", lambda: [notify("X"), order("Y")])
        with session.decision(tools=["order"]) as second:
            order("Z")
        order("no reason")
    found = causes(memory)
    assert found == [*[first.decision_id] * 3, second.decision_id, None]
    assert causes(memory, "step_started") == [first.decision_id]
    ids = [each.envelope.event_id for each in memory.events()]
    kinds = [each.envelope.event_type for each in memory.events()]
    assert ids.index(first.decision_id) < kinds.index("tool_call_started")
    assert memory.rejections() == []


def test_of_a_decision_within_another_one_the_inner_one_is_the_cause() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.decision(tools=["order"]) as outer:
        with session.decision("Y", candidates=SCORES) as inner:
            order("Y")
        order("X")
    assert causes(memory) == [inner.decision_id, outer.decision_id]
    assert causes(memory, "llm_decision") == [None, outer.decision_id]


def test_the_decision_of_one_session_causes_no_call_of_another_one() -> None:
    client, memory = memory_client()
    with (
        client,
        client.session(user_id="u") as session,
        session.decision(tools=["order"]),
        client.session(user_id="u"),
    ):
        order("X")
    assert causes(memory) == [None]


@pytest.mark.parametrize("given", [{}, {"reason": "I would take X."}, {"candidates": {}, "tools": []}])
def test_free_text_is_no_decision(given: dict[str, Any]) -> None:
    """R-004-53: validation refuses it."""
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(Invalid, match="a model's text is a message"):
            session.decision("X", **given)
        with pytest.raises(Invalid, match="a model's text is a message"):
            session.emit(LlmDecision("m", choice="X", output_text="I would take X."))
    assert "llm_decision" not in sent_types(memory)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"candidates": {"X": "good"}}, "the score of 'X' is 'good'"),
        ({"candidates": {"X": float("nan")}}, "not a finite number"),
        ({"candidates": {"X": 10**400}}, "the score of 'X' is an integer beyond the range of numbers"),
        ({"candidates": SCORES, "threshold": 10**5_000}, "the score of 'threshold' is an integer beyond"),
        ({"candidates": SCORES, "threshold": "high"}, "the score of 'threshold' is 'high'"),
        ({"tools": "order"}, "give the names of the tools in a list"),
        ({"candidates": [("X", 0.92)]}, "give a mapping of names to scores"),
        ({"tools": ["order"], "inputs": object()}, "inputs"),
    ],
)
def test_what_is_no_score_no_list_or_no_json_is_refused(given: dict[str, Any], what: str) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, pytest.raises(Invalid, match=what):
        session.decision("X", **given)
    assert "llm_decision" not in sent_types(memory)


def test_with_asyncio_it_is_the_same() -> None:
    async def decide() -> tuple[str, InMemoryTransport]:
        sync_client, memory = memory_client()
        async with AsyncSessionClient.wrap(sync_client) as client, client.session(user_id="u") as session:
            with pytest.raises(Invalid, match="a model's text is a message"):
                await session.decision("X")
            with await session.decision("X", candidates=SCORES, threshold=0.85) as decision:
                await asyncio.to_thread(order, "X")
            return decision.decision_id, memory

    decision_id, memory = asyncio.run(decide())
    assert causes(memory) == [decision_id]
    assert memory.rejections() == []
