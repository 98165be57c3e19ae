"""Why an agent decided, and which effects no decision explains, are questions to ClickHouse."""

import json
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from sessionary.producers import DataClass, SessionClient, tool, traced
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import encode_event
from sessionary.schemas.events import LlmDecision, ToolCallStarted
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.types import Candidate
from tests.integration.test_run_views import Runs
from tests.support.sink_records import session_id

SIX_FACTS = """
SELECT JSONExtractString(inputs, 'preference') AS preference, JSONExtractUInt(inputs, 'similar_profiles') AS profiles,
    arrayFirst(x -> x.name = choice, candidates).score AS score,
    arrayMap(x -> (x.name, x.score), arrayFilter(x -> x.name != choice, candidates)) AS alternatives, threshold, choice
FROM v_decisions WHERE choice = 'X'
"""


@pytest.fixture
def runs(tables: ClickHouseSettings) -> Runs:
    return Runs(tables)


@tool(effect="write")
def recommend(item: str) -> str:
    return f"recommended {item}"


@traced("tool", side_effect=True)
def notify(item: str) -> None:
    """Tell the user of an item."""


@tool(effect="read")
def look_up(item: str) -> str:
    return f"{item} is near"


def decide(memory: InMemoryTransport, data_class: DataClass, client: SessionClient) -> str:
    """Work with and without decisions in a session of a class; return the session's id."""
    with client.session(user_id="u-7", data_classes=[data_class]) as session, session.run("recommend") as run:
        look_up("X")
        scores = {"X": 0.92, "Y": 0.78, "Z": 0.81}
        inputs = {"preference": "quiet", "similar_profiles": 50}
        use: dict[str, Any] = {
            "model": "m",
            "prompt_id": "recommend",
            "prompt_version": "v2",
            "parameters": {"temperature": 0},
        }
        with session.decision("X", candidates=scores, threshold=0.85, inputs=inputs, tokens_in=900, **use):
            recommend("X")
            run.step("tell", notify, "X")
        recommend("Y")
        run.step("tell more", notify, "Y")
    assert memory.rejections() == []
    return f"{session.session_id}"


def test_all_six_facts_of_a_recommendation_are_one_question(runs: Runs) -> None:
    """R-003-18."""
    client, memory = memory_client()
    with client:
        decide(memory, "personal", client)
    runs.deliver(*(encode_event(event) for event in memory.events()))
    facts = ("quiet", 50, 0.92, [("Y", 0.78), ("Z", 0.81)], 0.85, "X")
    assert [tuple(map(_plain, row)) for row in runs.ask(SIX_FACTS)] == [facts]
    use = "SELECT model, prompt_id, prompt_version, parameters, tokens_in, tool_calls.tool_name FROM v_decisions"
    assert runs.ask(use) == [("m", "recommend", "v2", '{"temperature":0}', 900, ["recommend", "notify"])]


def _plain(value: Any) -> Any:
    return [tuple(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("data_class", ["financial", "medical", "legal"])
def test_an_effect_without_a_decision_is_listed_in_regulated_sessions_only(runs: Runs, data_class: DataClass) -> None:
    """R-003-19."""
    client, memory = memory_client()
    with client:
        listed = decide(memory, data_class, client)
        decide(memory, "none", client)
    runs.deliver(*(encode_event(event) for event in memory.events()))
    found = runs.ask("SELECT session_id, tool_name, data_classes FROM v_undecided_calls ORDER BY tool_name")
    assert found == [(listed, "notify", [data_class]), (listed, "recommend", [data_class])]


def test_a_rejected_decision_explains_nothing_and_a_repeated_one_counts_once(runs: Runs) -> None:
    call = ToolCallStarted("id-1", "order", "k", "{}", 1, side_effect=True, queryable=False)
    classes: dict[str, Any] = {"data_classes": ("financial",)}
    runs.send(LlmDecision(choice="X", output_text="I would take X."), **classes)
    runs.send(call, causation_id="event-1-1", **classes)
    runs.reject(0, "invalid_value")
    assert runs.ask("SELECT count() FROM v_decisions") == [(0,)]
    assert runs.ask("SELECT tool_call_id, cause_id FROM v_undecided_calls") == [("id-1", "event-1-1")]
    runs.send(LlmDecision(chosen_tools=("order",)), **classes)
    runs.deliver(runs.sent[-1])
    runs.send(call._replace(try_number=2), causation_id="event-1-3", **classes)
    assert runs.ask("SELECT decision_id, tool_calls.tool_name FROM v_decisions") == [("event-1-3", ["order"])]
    assert runs.ask("SELECT count() FROM v_undecided_calls") == [(0,)]


def test_a_rejected_call_that_is_delivered_again_is_no_call(runs: Runs) -> None:
    call = ToolCallStarted("id-1", "order", "k", "{}", 1, side_effect=True, queryable=False)
    classes: dict[str, Any] = {"data_classes": ("financial",)}
    decision = runs.send(LlmDecision(chosen_tools=("order",)), **classes)
    for cause in ("event-1-1", None):
        forged = runs.send(call._replace(tool_call_id=f"forged {cause}"), causation_id=cause, **classes)
        runs.reject(forged, "stale_epoch")
        runs.deliver(runs.sent[forged])
    accepted = runs.send(call, causation_id="event-1-1", **classes)
    runs.deliver(runs.sent[accepted], runs.sent[decision])
    assert runs.ask("SELECT tool_calls.tool_call_id FROM v_decisions") == [(["id-1"],)]
    assert runs.ask("SELECT count() FROM v_undecided_calls") == [(0,)]
    free = runs.send(call._replace(tool_call_id="late"), **classes)
    runs.reject(free, "unknown_session")  # leaves its number free
    runs.deliver(runs.sent[free])
    assert runs.ask("SELECT tool_call_id FROM v_undecided_calls") == [("late",)]


def test_a_person_asks_why(
    runs: Runs, tables: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """R-003-03: in order, with inputs and outcome."""
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", tables.clickhouse_url)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_DATABASE", tables.clickhouse_database)
    scores = (Candidate("X", 0.92), Candidate("Y", 0.78))
    runs.send(LlmDecision("m", (), '{"user":"u"}', scores, 0.85, "X", prompt_id="p", prompt_version="v2"))
    runs.send(
        ToolCallStarted("id-1", "recommend", "k", "{}", 1, side_effect=True, queryable=False), causation_id="event-1-1"
    )
    last = runs.send(LlmDecision("m", ("search",)))
    runs.decide(last, 1, kind="transition", event_type="session_started", to_state="Active", run_id=None)
    assert run(["session", "why", session_id(1), "--json"]) == 0
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    asked = ("choice", "threshold", "inputs", "tool_calls", "prompt_version", "decision_id")
    assert [first[name] for name in asked] == ["X", 0.85, '{"user":"u"}', ["recommend"], "v2", "event-1-1"]
    assert first["candidates"] == [{"name": "X", "score": 0.92}, {"name": "Y", "score": 0.78}]
    assert (second["tools"], second["candidates"], second["tool_calls"]) == (["search"], [], [])
    assert run(["session", "why", session_id(1), "--decision", "event-1-3", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["decision_id"] == "event-1-3"
    assert run(["session", "why", session_id(1), "--decision", "event-1"]) == 5
    assert "give more of the id" in capfd.readouterr().err
    assert run(["session", "why", session_id(1), "--decision", "nothing"]) == 4
    assert "has no decision 'nothing'" in capfd.readouterr().err
