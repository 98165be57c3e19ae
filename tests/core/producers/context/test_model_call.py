"""`session.llm`: one call of a model as events."""

import asyncio
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, ProducerSettings, Session, SessionClient
from sessionary.producers.context.model_call import ModelCall
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
            call.tokens_in, call.tokens_out, call.model_cost_usd_nanos = 1_200, 300, 5_400
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


def told_errors(client: SessionClient) -> list[Exception]:
    errors: list[Exception] = []
    client.core.services = client.core.services._replace(on_error=errors.append)
    return errors


def test_an_invalid_value_is_told_and_raises_nothing() -> None:
    client, memory = memory_client()
    errors = told_errors(client)
    with client, client.session(user_id="u") as session:
        with session.llm("large") as call:
            call.tokens_in, call.tokens_out = -5, 7
        with pytest.raises(KeyError):
            use_and_fail(session, -5, KeyError())
    told = (
        "the usage of large: tokens_in is -5 and counts as 0; report whole numbers from 0 to 1000000000000000, "
        "ids as texts"
    )
    assert [error.detail for error in errors if isinstance(error, Invalid)] == [told] * 2
    usages = [event.payload for event in memory.events() if isinstance(event.payload, UsageRecorded)]
    assert [(usage.tokens_in, usage.tokens_out) for usage in usages] == [(0, 7), (0, 0)]


class Odd:
    """A value of a library that refuses all."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    def __round__(self) -> int:
        raise RuntimeError("no scalar")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


NUMBERS = (
    *("tokens_in", "tokens_out", "model_cost_usd_nanos", "cache_read_input_tokens", "cache_write_input_tokens"),
    *("reasoning_output_tokens", "time_to_first_token_ms", "retries"),
)


@pytest.mark.parametrize(
    "wrong", [-1, 10**15 + 1, "many", float("nan"), float("inf"), [1], Odd()], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_no_usage_holds_is_left_out_and_told(name: str, wrong: object) -> None:
    client, memory = memory_client()
    errors = told_errors(client)
    with client, client.session(user_id="u") as session, session.llm("large") as call:
        setattr(call, name, wrong)
    (usage,) = (event.payload for event in memory.events() if isinstance(event.payload, UsageRecorded))
    assert not getattr(usage, name)
    (error,) = errors
    assert f"the usage of large: {name} is " in f"{error}"
    assert f" and counts as {getattr(usage, name)}; " in f"{error}"


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("response_id", 7, "response_id is 7 and is left out"),
        ("response_id", "x" * 16_385, "xx and is left out"),
        ("retry_of", b"step", "retry_of is b'step' and is left out"),
        ("retry_of", Odd(), "retry_of is a Odd and is left out"),
        ("is_timeout_retry", "yes", "is_timeout_retry is 'yes' and counts as False"),
    ],
)
def test_a_mark_that_no_usage_holds_is_left_out_and_told(name: str, wrong: object, told: str) -> None:
    client, memory = memory_client()
    errors = told_errors(client)
    with client, client.session(user_id="u") as session, session.llm("large") as call:
        call.tokens_in = 5
        setattr(call, name, wrong)
    (usage,) = (event.payload for event in memory.events() if isinstance(event.payload, UsageRecorded))
    assert (usage.tokens_in, getattr(usage, name) or None) == (5, None)
    (error,) = errors
    assert told in f"{error}"


def test_whole_numbers_of_other_types_and_missing_details_are_no_fault() -> None:
    client, memory = memory_client()
    errors = told_errors(client)
    with client, client.session(user_id="u") as session, session.llm("large") as call:
        call.model_cost_usd_nanos = Decimal("13.0")  # type: ignore[assignment]
        call.tokens_in = 5.0  # type: ignore[assignment]
        call.time_to_first_token_ms = 120.4
        call.cache_read_input_tokens = call.cache_write_input_tokens = None
        call.reasoning_output_tokens = call.retries = None
    (usage,) = (event.payload for event in memory.events() if isinstance(event.payload, UsageRecorded))
    assert usage == UsageRecorded("large", 5, 0, 13, 0, is_timeout_retry=False, time_to_first_token_ms=120)
    assert errors == []


def set_details(call: ModelCall) -> None:
    call.tokens_in, call.tokens_out = 1_200, 300
    call.cache_read_input_tokens, call.cache_write_input_tokens = 1_000, 100
    call.reasoning_output_tokens, call.retries, call.response_id = 250, 2, "resp-1"
    call.time_to_first_token_ms = 480
    call.is_timeout_retry, call.retry_of = True, "step-1"


DETAILED = UsageRecorded(
    "large",
    *(1_200, 300, 0, 0),
    is_timeout_retry=True,
    retry_of="step-1",
    cache_read_input_tokens=1_000,
    cache_write_input_tokens=100,
    reasoning_output_tokens=250,
    response_id="resp-1",
    time_to_first_token_ms=480,
    retries=2,
)


def test_a_call_reports_what_today_s_models_answer() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with session.llm("large") as call:
            set_details(call)
        session.usage(**DETAILED._asdict())
    assert [event.payload for event in memory.events() if isinstance(event.payload, UsageRecorded)] == [DETAILED] * 2
    assert memory.rejections() == []


def test_a_call_in_asyncio_reports_the_same() -> None:
    async def main() -> InMemoryTransport:
        sync_client, memory = memory_client()
        async with AsyncSessionClient.wrap(sync_client) as client, client.session(user_id="u") as session:
            async with session.llm("large") as call:
                set_details(call)
            await session.usage(**DETAILED._asdict())
        return memory

    events = asyncio.run(main()).events()
    assert [event.payload for event in events if isinstance(event.payload, UsageRecorded)] == [DETAILED] * 2


def set_and_fail(session: Session, name: str, value: object) -> None:
    with session.llm("large") as call:
        setattr(call, name, value)
        raise TimeoutError


@pytest.mark.parametrize(("name", "value"), [("response_id", "resp-1"), ("retries", 1), ("time_to_first_token_ms", 5)])
def test_a_failed_call_has_a_usage_if_something_of_it_was_set(name: str, value: object) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, pytest.raises(TimeoutError):
        set_and_fail(session, name, value)
    (usage,) = (event.payload for event in memory.events() if isinstance(event.payload, UsageRecorded))
    assert getattr(usage, name) == value


def test_the_first_token_is_timed_by_the_client_s_clock() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.llm("large") as call:
        memory.advance(2)
        call.mark_first_token()
        memory.advance(3)
        call.mark_first_token()
    (usage,) = (event.payload for event in memory.events() if isinstance(event.payload, UsageRecorded))
    assert usage.time_to_first_token_ms is not None
    assert 2_000 <= usage.time_to_first_token_ms < 5_000


def test_a_call_that_repeats_another_names_its_step() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(TimeoutError), session.llm("large") as first:
            raise TimeoutError
        with session.llm("large") as second:
            second.is_timeout_retry, second.retry_of = True, first.step_id
    started, *_ = call_events(memory)
    usage = call_events(memory)[-1].payload
    assert isinstance(usage, UsageRecorded)
    assert (usage.is_timeout_retry, usage.retry_of) == (True, started.envelope.step_id)


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
            call.tokens_in = call.model_cost_usd_nanos = figure
            call.tokens_out = 7
        session.usage(model="large", tokens_in=figure, tokens_out=7, tool_cost_usd_nanos=figure)
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


def test_a_model_whose_name_is_too_long_is_left_out_and_told() -> None:
    client, memory = memory_client()
    errors = told_errors(client)
    with client, client.session(user_id="u") as session:
        session.usage(model="m" * 300, tokens_in=3)
        with session.llm("m" * 300):
            pass
    usages = [event.payload for event in call_events(memory) if isinstance(event.payload, UsageRecorded)]
    assert [usage.model for usage in usages] == [None, "m" * 256]
    assert [f"{error}".count("and is left out") for error in errors] == [1]


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
