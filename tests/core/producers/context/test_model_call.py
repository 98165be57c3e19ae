"""`session.llm`: one call of a model as events."""

import asyncio
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, ProducerSettings, Session
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import Event
from sessionary.schemas.events import StepFailed, StepStarted, StepSucceeded, UsageRecorded


def call_events(memory: InMemoryTransport) -> list[Event]:
    kinds = (StepStarted, StepSucceeded, StepFailed, UsageRecorded)
    return [event for event in memory.events() if isinstance(event.payload, kinds)]


def use_and_fail(session: Session, tokens_in: int, error: Exception) -> None:
    with session.llm("large") as call:
        call.tokens_in = tokens_in
        raise error


def test_a_run_takes_any_number_of_calls_of_the_same_model() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report"):
        for _ in range(3):
            with session.llm("large"):
                pass
    assert len(call_events(memory)) == 9
    assert memory.rejections() == []


def test_a_model_call_reports_duration_tokens_and_cost() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with session.llm("large", run_id="run") as call:
            inner = session.info("inside")
            call.tokens_in, call.tokens_out, call.model_cost_usd_micros = 1_200, 300, 5_400
        assert call.model == "large"
    started, succeeded, usage = call_events(memory)
    assert started.payload == StepStarted("llm large", 0)
    assert isinstance(succeeded.payload, StepSucceeded)
    assert (succeeded.payload.name, succeeded.payload.attempt) == ("llm large", 0)
    assert succeeded.payload.execution_time_ms is not None
    assert succeeded.payload.execution_time_ms >= 0
    assert usage.payload == UsageRecorded("large", 1_200, 300, 5_400, 0, is_timeout_retry=False)
    assert {event.envelope.run_id for event in (started, succeeded, usage)} == {"run"}
    assert len({event.envelope.step_id for event in (started, succeeded, usage)} - {None}) == 1
    assert {event.envelope.causation_id for event in (succeeded, usage)} == {started.envelope.event_id}
    (inside,) = (event.envelope for event in memory.events() if event.envelope.event_id == inner)
    assert (inside.step_id, inside.causation_id) == (started.envelope.step_id, started.envelope.event_id)


def test_a_call_that_raises_reports_its_error_and_what_was_used() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(TimeoutError), session.llm("large"):
            raise TimeoutError("too slow")
        with pytest.raises(TimeoutError):
            use_and_fail(session, 5, TimeoutError("too slow"))
    first, second = call_events(memory)[:2], call_events(memory)[2:]
    failed = first[1].payload
    assert isinstance(failed, StepFailed)
    assert (failed.error.code, failed.error.message, failed.error.error_class) == (
        "TimeoutError",
        "too slow",
        "retryable",
    )
    assert [type(event.payload) for event in second] == [StepStarted, StepFailed, UsageRecorded]


def test_a_call_that_ends_while_the_session_is_held_reports_what_is_accepted_then() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.llm("large") as call:
        session.pause()
        call.tokens_in = 5
    assert [type(event.payload) for event in call_events(memory)] == [StepStarted, UsageRecorded]


class Unshowable:
    """A figure of which nothing can be read."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("figure", "counted"),
    [
        *((3.0, 3), (Decimal(3), 3), (Fraction(6, 2), 3), (True, 1)),
        *((3.5, 4), (Decimal("2690.24"), 2_690)),
        *((None, 0), ("3", 0), (-5, 0), (10**16, 0), (math.nan, 0), (math.inf, 0), ([3], 0), (Unshowable(), 0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_figure_that_is_no_whole_number_is_told_and_raises_nothing(figure: Any, counted: int) -> None:
    errors: list[Exception] = []
    client, memory = memory_client(on_error=errors.append)
    with client, client.session(user_id="u") as session:
        with session.llm("large") as call:
            call.tokens_in = call.model_cost_usd_micros = figure
            call.tokens_out = 7
        session.usage(model="large", tokens_in=figure, tokens_out=7, tool_cost_usd_micros=figure)
        with pytest.raises(KeyError):
            use_and_fail(session, figure, KeyError())
    usages = [event.payload for event in call_events(memory) if isinstance(event.payload, UsageRecorded)]
    assert usages[:2] == [
        UsageRecorded("large", counted, 7, counted, 0, is_timeout_retry=False),
        UsageRecorded("large", counted, 7, 0, counted, is_timeout_retry=False),
    ]
    assert memory.rejections() == []
    if not isinstance(figure, Unshowable) and figure == counted:
        assert errors == []
    else:
        assert all(isinstance(error, Invalid) and f"counts as {counted}" in f"{error}" for error in errors)
        assert len(errors) == len(usages)  # without a figure, a call that raised has none


def test_another_fault_of_a_usage_is_raised() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(Invalid, match="300 characters"):
            session.usage(model="m" * 300, tokens_in=3)
        with session.llm("m" * 300):
            pass
        with pytest.raises(KeyError):
            use_and_fail(session, 5, KeyError())
    assert [type(event.payload) for event in call_events(memory)].count(UsageRecorded) == 2


def test_a_misspelt_figure_is_an_error() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session, pytest.raises(AttributeError), session.llm("large") as call:
        call.token_in = 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["spool", "block"])
def test_a_model_call_in_asyncio(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> InMemoryTransport:
        settings = ProducerSettings.from_env({}, delivery_policy=policy)
        sync_client, memory = memory_client(settings=settings)
        monkeypatch.setattr(InMemoryTransport, "may_block", policy == "block")
        client = AsyncSessionClient.wrap(sync_client)
        async with client, client.session(user_id="u") as session:
            async with session.llm("large") as call:
                await asyncio.sleep(0)
                call.tokens_out = 7
                await session.info("inside")
            with pytest.raises(asyncio.CancelledError):
                async with session.llm("small"):
                    raise asyncio.CancelledError
        return memory

    memory = asyncio.run(main())
    kinds = [type(event.payload) for event in call_events(memory)]
    assert kinds == [StepStarted, StepSucceeded, UsageRecorded, StepStarted, StepFailed]
    step_id = call_events(memory)[0].envelope.step_id
    assert sum(event.envelope.step_id == step_id for event in memory.events()) == 4
