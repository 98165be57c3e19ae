"""A session told as a trace, and what it accessed, in the real engine."""

import json
from collections.abc import Callable

import pytest

from sessionary.infra.cli.app import run
from sessionary.producers import Retry, SessionClient, tool
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.memory_rows import insert_memory
from tests.support.pipelines import set_environment

RECORDS = 1_247


class RateLimited(Exception):
    status_code = 429


@tool(effect="read")
def query_sales(quarter: str) -> list[int]:
    return list(range(RECORDS))


def make_forecast_tool(failures: int) -> Callable[[int], str]:
    left = [RateLimited("Rate limit exceeded")] * failures

    @tool(effect="read", retry=Retry(base_ms=400, jitter=0))
    def forecast(rows: int) -> str:
        if left:
            raise left.pop()
        return "up"

    return forecast


@pytest.fixture
def memory() -> InMemoryTransport:
    return InMemoryTransport(partitions=1)


@pytest.fixture
def client(memory: InMemoryTransport) -> SessionClient:
    return memory_client(memory=memory)[0]


def test_a_trace_prints_the_seven_steps_with_arguments_counts_and_error_code(
    tables: ClickHouseSettings,
    memory: InMemoryTransport,
    client: SessionClient,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """R-003-17, of a session that was driven by the client's own tools and retries."""
    forecast = make_forecast_tool(1)
    with client, client.session(user_id="u1") as session:
        session.message("user", "Analyse the sales of 2026-Q3 and forecast the next quarter")
        rows = query_sales("2026-Q3")
        assert forecast(len(rows)) == "up"
    insert_memory(tables, memory)
    set_environment(monkeypatch, tables)
    assert run(["session", "timeline", session.session_id, "--trace", "--json"]) == 0
    steps = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(step["step"], step["what"], step["name"], step["tries"]) for step in steps] == [
        (1, "user query", "user", None),
        (2, "tool call", "query_sales", 1),
        (3, "result", "query_sales", 1),
        (4, "tool call", "forecast", 1),
        (5, "error", "forecast", 1),
        (6, "retry", "forecast", 2),
        (7, "success", "forecast", 2),
    ]
    texts = [step["text"] for step in steps]
    assert texts[0] == "Analyse the sales of 2026-Q3 and forecast the next quarter"
    assert texts[1] == '{"quarter":"2026-Q3"}'
    assert texts[2].startswith("1,247 records: [0,1,2,")
    assert texts[3:] == [
        '{"rows":1247}',
        "Rate limit exceeded (429), retryable",
        'try 2: retry 1 of 5, after exponential back-off of 0.4 s; {"rows":1247}',
        '"up"',
    ]
    assert (steps[2]["records"], steps[4]["error_code"]) == (RECORDS, "http_429")
