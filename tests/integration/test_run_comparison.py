"""Two runs by two versions of a prompt are compared by a query and by `run compare`."""

import json
from typing import Any

import pytest

from sessionary.infra.cli.app import run as run_cli
from sessionary.producers import Session, tool
from sessionary.producers.testing import memory_client
from sessionary.schemas.codec import Event, encode_event, encode_record
from sessionary.schemas.events import SessionCreated
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.test_run_views import Runs
from tests.support.clickhouse_rows import insert_block
from tests.support.sink_records import audit_record

VERSIONS = """
SELECT prompt_version, tools, tokens_in, tokens_out, cost_usd_nanos, status, score, duration_s >= 0
FROM v_prompt_runs WHERE prompt_id = 'answer' AND task_type = 'answer' ORDER BY prompt_version
"""


@tool(effect="read")
def search(query: str) -> list[str]:
    return [f"about {query}"]


@tool(effect="read")
def read(page: str) -> str:
    return f"{page} says so"


def answer(session: Session, run_id: str, version: str, pages: int, score: float, question: str = "why?") -> None:
    """Answer a question by one version of the prompt, which reads some pages."""
    used = {"answer": version}
    with session.run("answer", input={"q": question}, prompt_versions=used, run_id=run_id) as work:
        for number in range(pages):
            search(f"page {number}")
            read(f"page {number} for {version}")
        session.usage(model="m", tokens_in=100 * pages, tokens_out=10, model_cost_usd_nanos=1_000 * pages)
        work.result = {"score": score}


@pytest.fixture
def runs(tables: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", tables.clickhouse_url)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_DATABASE", tables.clickhouse_database)
    return Runs(tables)


def deliver(runs: Runs, events: list[Event]) -> None:
    """Insert events, and for each session the record that makes it known."""
    runs.deliver(*(encode_event(event) for event in events))
    for number, (tenant, session) in enumerate(
        dict.fromkeys((event.envelope.tenant_id, event.envelope.session_id) for event in events)
    ):
        record = audit_record(1, 1, transition="T02", at=runs.at_us(0))
        record = record._replace(tenant_id=tenant, session_id=session)
        insert_block(runs.rows.clickhouse, "audit", [(runs.at_us(0), number, encode_record(record))], f"known {number}")


def test_two_versions_of_a_prompt_are_compared_by_tools_cost_and_outcome(
    runs: Runs, capfd: pytest.CaptureFixture[str]
) -> None:
    """R-003-20."""
    client, memory = memory_client()
    with client:
        with client.session(user_id="u") as first:
            answer(first, "one", "v1", 2, 0.5)
            answer(first, "other", "v1", 1, 0.1, "another question")
        with client.session(user_id="u") as second:
            answer(second, "two", "v2", 1, 0.75)
        child = client.create(user_id="u", parent=first)
        child.start()
        child.close()
    assert memory.rejections() == []
    deliver(runs, memory.events())
    assert [row for row in runs.ask(VERSIONS) if row[6] != 0.1] == [
        ("v1", ["search", "read", "search", "read"], 200, 10, 2_000, "completed", 0.5, 1),
        ("v2", ["search", "read"], 100, 10, 1_000, "completed", 0.75, 1),
    ]
    one, two = f"{first.session_id}/one", f"{second.session_id}/two"
    assert run_cli(["run", "compare", one, two, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["origin"] == "both are of the task answer with the same input and the prompt answer"
    asked = ("prompts", "tools", "calls", "failures", "tokens_in", "cost_usd_nanos", "outcome", "score")
    assert [found["a"][name] for name in asked] == [
        {"answer": "v1"}, ["search", "read"] * 2, 4, 0, 200, 2_000, "completed", 0.5
    ]  # fmt: skip
    assert [found["b"][name] for name in asked] == [
        {"answer": "v2"}, ["search", "read"], 2, 0, 100, 1_000, "completed", 0.75
    ]  # fmt: skip
    parted: dict[str, Any] = {level: each["number"] for level, each in found["divergences"].items()}
    assert parted == {"name": 3, "arguments": 2, "result": 2}
    assert [pair["agree_by"] for pair in found["pairs"]] == ["result", "name", None, None]
    assert run_cli(["run", "compare", one, two]) == 0  # a table for people
    capfd.readouterr()

    other = f"{first.session_id}/other"
    assert run_cli(["run", "compare", two, other]) == 5
    assert "have no common origin" in capfd.readouterr().err
    assert run_cli(["run", "compare", two, other, "--unrelated", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["origin"] is None
    assert run_cli(["run", "compare", one, child.session_id, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["origin"] == f"both descend from session {first.session_id}"
    assert run_cli(["run", "compare", one, one]) == 5
    assert "are the same" in capfd.readouterr().err
    assert run_cli(["run", "compare", one, f"{second.session_id}/none"]) == 4
    assert "has no run 'none'" in capfd.readouterr().err


def test_a_rejected_creation_makes_no_common_origin(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    client, memory = memory_client()
    with client:
        with client.session(user_id="u") as parent:
            answer(parent, "one", "v1", 1, 0.5)
        with client.session(user_id="u") as other:
            answer(other, "two", "v2", 1, 0.5, "another question")
    created = next(each for each in memory.events() if each.envelope.session_id == other.session_id)
    assert isinstance(created.payload, SessionCreated)
    forged = created._replace(
        envelope=created.envelope._replace(event_id="forged", producer_id="forger"),
        payload=created.payload._replace(parent_session_id=parent.session_id),
    )
    runs.deliver(encode_event(forged))
    runs.reject(0)
    deliver(runs, memory.events())
    assert run_cli(["run", "compare", parent.session_id, other.session_id]) == 5
    assert "have no common origin" in capfd.readouterr().err


def test_a_rejected_payment_that_is_delivered_again_costs_nothing(
    runs: Runs, capfd: pytest.CaptureFixture[str]
) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        answer(session, "one", "v1", 1, 0.5)
        answer(session, "two", "v1", 2, 0.5)
    events = memory.events()
    paid = next(place for place, each in enumerate(events) if each.envelope.event_type == "usage_recorded")
    deliver(runs, events)
    of_session = {"tenant_id": events[0].envelope.tenant_id, "session_id": session.session_id}
    runs.reject(paid, "stale_epoch", **of_session)
    runs.deliver(encode_event(events[paid]), encode_event(events[-1]))
    names = [f"{session.session_id}/{name}" for name in ("one", "two")]
    assert run_cli(["run", "compare", *names, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [(found[side]["model_calls"], found[side]["cost_usd_nanos"]) for side in "ab"] == [(0, 0), (1, 2_000)]
