"""How long attached runs, steps and calls of models may take, and what a client does about it."""

import asyncio
from contextvars import Context
from typing import Any

import pytest

from sessionary.producers import (
    AsyncSession,
    AsyncSessionClient,
    Invalid,
    Limits,
    ModelTimeout,
    ProducerSettings,
    Run,
    Session,
    tool,
)
from sessionary.producers.run_ports import StepView
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.producers.testing.clients import memory_ports
from sessionary.producers.testing.memory_runs import MemoryRuns
from sessionary.schemas.events import ProgressReported, RunPaused, RunRunning, StepFailed, StepStarted, UsageRecorded
from sessionary.schemas.limits import DEFAULTS, inactivity_budget_ms


def payloads(memory: InMemoryTransport, kind: type[Any]) -> list[Any]:
    return [event.payload for event in memory.events() if isinstance(event.payload, kind)]


def step_audits(memory: InMemoryTransport) -> list[tuple[str, str]]:
    return [(record.reason_code, record.reason) for record in memory.audit() if record.kind == "step"]


def test_a_run_declared_longer_than_an_attached_one_may_take_is_refused_with_a_hint() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(Invalid, match=r"an attached one may take 900000 ms: use mode='detached'"):
            session.run("train", expected_ms=900_001)
        with session.run("train", expected_ms=900_000), session.run("train", mode="detached", expected_ms=10**8):
            pass
    assert memory.rejections() == []


def test_a_task_that_beats_for_ever_is_ended_at_the_hard_limit() -> None:
    client, memory = memory_client(on_rejected=lambda _: None)
    limits = Limits(attached_run_ms=300_000, idle_ms=10**7)  # as of a gateway: five minutes
    with client, client.session(user_id="u", limits=limits) as session, session.run("train") as run:
        memory.advance(299.9)
        assert [record for record in memory.audit() if record.run_id == run.run_id] == []
        memory.advance(0.1)
        (ended,) = (record for record in memory.audit() if record.run_id == run.run_id)
        assert (ended.reason_code, ended.to_run_state) == ("attached_limit", "failed")
        assert ended.reason == "Attached run failed after 300s: its limit is over"
        assert memory.view_session(session).state == "Active"


@pytest.mark.parametrize(
    ("limits", "seconds", "reason"),
    [
        (Limits(idle_ms=60_000), 60, "idle"),
        (Limits(max_duration_ms=60_000), 60, "max_duration"),
        (Limits(attached_run_ms=60_000), 60, "attached_limit"),
        (Limits(model_ms=30_000, tool_ms=20_000, network_ms=10_000), 60, "inactive"),
    ],
)
def test_each_limit_fires_with_its_own_reason(limits: Limits, seconds: int, reason: str) -> None:
    client, memory = memory_client(on_rejected=lambda _: None, on_timed_out=lambda _: None)
    with client, client.session(user_id="u", limits=limits) as session, session.run("train"):
        if reason == "inactive":
            memory.silence(session)
        memory.advance(seconds - 0.1)
        assert [record for record in memory.audit() if record.due_at] == []
        memory.advance(0.1)
        assert [record.reason_code for record in memory.audit() if record.due_at] == [reason]


def test_a_session_that_may_take_days_is_not_cut_at_eight_hours() -> None:
    client, memory = memory_client()
    eight_hours_s = (DEFAULTS.max_duration_ms or 0) // 1_000
    limits = Limits(max_duration_ms=3 * 86_400_000, idle_ms=4 * 86_400_000)
    with client, client.session(user_id="u", limits=limits) as session:
        memory.advance(2 * eight_hours_s)
        assert memory.view_session(session).state == "Active"
        assert [record for record in memory.audit() if record.due_at] == []


def test_progress_of_each_unit_of_work_is_an_event_and_the_series_ends_at_one() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("train") as run:
        for epoch in range(4):
            memory.advance(20)
            run.report_progress(epoch + 1, 4, f"Step {epoch + 1}/4")
            assert memory.find_row(session.session_id).last_event_at == memory.now_ms
        with pytest.raises(Invalid, match="it must be a number from 0 to the total"):
            run.report_progress(5, 4)
    assert payloads(memory, ProgressReported) == [ProgressReported(n, 4.0, f"Step {n}/4") for n in range(1, 5)]
    assert [payload.progress for payload in payloads(memory, RunRunning)] == [None, 0.25, 0.5, 0.75, 1.0]


def test_a_step_over_its_limit_fails_alone_and_is_retried() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        with pytest.raises(ModelTimeout, match="step draft took longer than its limit of 20s") as raised:
            run.step("draft", memory.advance, 20.5, limit_ms=20_000)
        assert raised.value.limit_ms == 20_000
        assert step_audits(memory) == [
            ("model_limit", "Step failed after 20s: no end of draft was reported within its model limit")
        ]
        assert memory.view_session(session).state == "Active"
        assert run.step("draft", lambda: "text", limit_ms=20_000) == "text"
    assert [started.attempt for started in payloads(memory, StepStarted)] == [1, 2]
    assert payloads(memory, StepFailed) == []  # the processor knew
    assert memory.rejections() == []


def test_a_tool_over_its_share_becomes_unknown_alone_and_may_be_tried_again() -> None:
    client, memory = memory_client()
    waits = [20.5, 1.0]

    @tool(effect="read", name="search")
    def search() -> str:
        memory.advance(waits.pop(0))
        if waits:
            raise TimeoutError("the index is silent")
        return "found"

    with client, client.session(user_id="u") as session, session.run("report") as run:
        assert run.step("collect", search) == "found"
        assert memory.view_session(session).state == "Active"
    (lost,) = (record for record in memory.audit() if record.kind == "tool_call")
    assert (lost.reason_code, lost.to_call_state) == ("tool_call_limit", "unknown")
    assert lost.reason == "Tool call unknown after 20s: no outcome of search was reported within its limit"
    assert lost.due_at is not None
    (started, again) = (event for event in memory.verdicts() if event.event_type == "tool_call_started")
    assert (started.outcome, again.outcome) == ("applied", "applied")


def test_a_message_for_people_is_there_while_the_tool_call_still_runs() -> None:
    client, memory = memory_client()
    seen: list[str] = []

    with client, client.session(user_id="u") as session, session.run("report") as run:

        @tool(effect="read")
        def search() -> None:
            session.info("page 1 of 3")
            seen.extend(event.envelope.event_type for event in memory.events())

        run.step("collect", search)
    assert seen[-2:] == ["tool_call_started", "session_activity"]
    assert "tool_call_succeeded" not in seen
    assert memory.rejections() == []


def test_the_limits_of_a_session_nest() -> None:
    assert inactivity_budget_ms(DEFAULTS) == 60_000
    assert (DEFAULTS.attached_run_ms, DEFAULTS.idle_ms, DEFAULTS.max_duration_ms) == (900_000, 900_000, 28_800_000)


def test_a_step_may_take_the_models_share_of_its_session() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u", limits=Limits(model_ms=45_000)) as session, session.run("report") as run:
        assert run.step("draft", lambda: 1, limit_ms="model") == 1
        for wrong in (0, -1, 10**14):
            with pytest.raises(Invalid, match="limit_ms is"):
                run.step("other", lambda: 1, limit_ms=wrong)
    assert [started.limit_ms for started in payloads(memory, StepStarted)] == [45_000]


def test_a_step_that_fails_by_itself_in_time_says_why() -> None:
    client, memory = memory_client()

    def break_off() -> None:
        raise ValueError("no such page")

    with client, client.session(user_id="u") as session, session.run("report") as run:
        with pytest.raises(ValueError, match="no such page"):
            run.step("draft", break_off, limit_ms=20_000)
        run.report_progress()
    assert [failed.error.code for failed in payloads(memory, StepFailed)] == ["ValueError"]


def ask_model(session: Session, memory: InMemoryTransport, seconds: float) -> str:
    with session.llm("large") as call:
        memory.advance(seconds)
        call.tokens_in = 100
    return "answer"


def test_a_model_over_its_hard_limit_fails_its_step_and_the_retrys_usage_says_so() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        with pytest.raises(ModelTimeout, match="model large took longer than its limit of 600s"):
            run.step("draft", ask_model, session, memory, 600.5)
        assert run.step("draft", ask_model, session, memory, 1) == "answer"
        assert run.step("next", ask_model, session, memory, 1) == "answer"
    failed = [(one.name, one.error.error_class, one.error.code) for one in payloads(memory, StepFailed)]
    assert failed == [("llm large", "retryable", "model_limit"), ("draft", "retryable", "model_limit")]
    first = next(event for event in memory.events() if isinstance(event.payload, StepFailed))
    usage = [(one.is_timeout_retry, one.retry_of) for one in payloads(memory, UsageRecorded)]
    assert usage == [(False, None), (True, first.envelope.step_id), (False, None)]


def test_another_process_knows_that_it_retries_what_timed_out() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u")

    def fail_and_die() -> None:
        run = session.run("report", mode="detached", run_id="r1", expected_ms=10**8)
        run.__enter__()
        with pytest.raises(ModelTimeout):
            run.step("draft", memory.advance, 31, limit_ms="model")

    Context().run(fail_and_die)  # so that its run is not the current one of the tests that follow
    again, _ = memory_client(agent_id="another", memory=memory)
    other = again.attach(session.session_id)
    other.emit(RunPaused("lost"), run_id="r1")
    with other.resume_run("r1") as resumed:
        assert resumed.step("draft", ask_model, other, memory, 1) == "answer"
    (usage,) = payloads(memory, UsageRecorded)
    assert (usage.is_timeout_retry, usage.retry_of) == (True, None)


async def ask_slowly(session: AsyncSession, release: asyncio.Event) -> str:
    async with session.llm("large") as call:
        await release.wait()
        call.tokens_out = 7
    return "answer"


def run_async(memory: InMemoryTransport, work: Any) -> None:
    async def main() -> None:
        client = AsyncSessionClient(
            tenant_id="acme",
            service_id="service",
            agent_id="agent",
            settings=ProducerSettings.from_env({}, model_call_limit_s=0.04),
            ports=memory_ports(memory),
        )
        async with client, client.session(user_id="u") as session, session.run("report") as run:
            await work(session, run)

    asyncio.run(main())


def test_an_asynchronous_model_over_its_hard_limit_is_cancelled() -> None:
    memory = InMemoryTransport()

    async def work(session: AsyncSession, run: Run) -> None:
        release = asyncio.Event()
        with pytest.raises(ModelTimeout, match=r"model large took longer than its limit of 0\.04s"):
            await run.step("draft", ask_slowly, session, release)
        release.set()
        assert await run.step("draft", ask_slowly, session, release) == "answer"

    run_async(memory, work)
    failed = [(one.name, one.error.error_class, one.error.code) for one in payloads(memory, StepFailed)]
    assert failed == [("llm large", "retryable", "model_limit"), ("draft", "retryable", "model_limit")]
    (usage,) = payloads(memory, UsageRecorded)
    assert usage.is_timeout_retry
    assert usage.retry_of is not None


def test_an_asynchronous_step_over_its_limit_is_cancelled() -> None:
    memory = InMemoryTransport()
    cancelled = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def time_out_itself() -> None:
        raise TimeoutError("the step's own")

    async def work(session: AsyncSession, run: Run) -> None:
        with pytest.raises(ModelTimeout, match="step draft took longer"):
            await run.step("draft", wait_for_ever, limit_ms=40)
        with pytest.raises(TimeoutError, match="the step's own"):
            await run.step("other", time_out_itself, limit_ms=60_000)

    run_async(memory, work)
    assert cancelled == [True]


def test_a_running_step_with_a_limit_is_read_as_any_other() -> None:
    client, memory = memory_client()
    runs = MemoryRuns(memory)
    with client, client.session(user_id="u") as session, session.run("report", run_id="r1") as run:
        seen: list[object] = []

        def look() -> None:
            seen.extend(runs.fetch_steps(session.session_id, "r1", 1.0))
            seen.append(runs.fetch_step(session.session_id, "r1", "draft", 1.0))

        run.step("draft", look, limit_ms=9_000)
    assert seen == [StepView("draft", "running", 1), StepView("draft", "running", 1, input_json="{}")]
