"""`session.run`: one run of a task as events."""

import asyncio

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    Invalid,
    Limits,
    NotAllowed,
    ProducerSettings,
    Session,
    SessionEnded,
)
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import Event
from sessionary.schemas.events import (
    PlanRecorded,
    PlanReplaced,
    ProgressReported,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRunning,
    RunStarted,
    SessionActivity,
    SessionPaused,
)


def run_events(memory: InMemoryTransport) -> list[Event]:
    return [event for event in memory.events() if event.envelope.run_id is not None]


def run_and_raise(session: Session, error: BaseException) -> None:
    with session.run("report"):
        raise error


def test_what_happens_in_the_block_belongs_to_the_run() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        before = session.info("before")
        with session.run("report", input={"b": 1, "a": "é"}, plan=["one", "two"]) as run:
            inside = session.info("inside")
            run.report_progress(0.5)
            run.result = {"pages": 12}
        after = session.info("after")
    started, running, info, progress, detail, completed = run_events(memory)
    assert started.payload == RunStarted("attached", "report", '{"a":"é","b":1}', '["one","two"]')
    assert running.payload == RunRunning()
    assert progress.payload == RunRunning(0.5)
    assert detail.payload == ProgressReported(0.5, 1.0)
    assert isinstance(completed.payload, RunCompleted)
    assert completed.payload._replace(duration_ms=None) == RunCompleted('{"pages":12}')
    assert completed.payload.duration_ms is not None
    assert info.envelope.event_id == inside
    assert {event.envelope.run_id for event in run_events(memory)} == {run.run_id}
    assert {before, after}.isdisjoint(event.envelope.event_id for event in run_events(memory))


def test_a_block_that_raises_fails_its_run() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, pytest.raises(TimeoutError):
        run_and_raise(session, TimeoutError("too slow"))
    failed = run_events(memory)[-1].payload
    assert isinstance(failed, RunFailed)
    assert (failed.error.error_class, failed.error.code, failed.error.message) == (
        "retryable",
        "TimeoutError",
        "too slow",
    )


@pytest.mark.parametrize("error", [asyncio.CancelledError("by its user"), KeyboardInterrupt()])
def test_a_block_that_is_cancelled_cancels_its_run(error: BaseException) -> None:
    client, memory = memory_client()
    session = client.create(user_id="u")
    session.start()
    with pytest.raises(type(error)):
        run_and_raise(session, error)
    assert isinstance(run_events(memory)[-1].payload, RunCancelled)
    client.close()


def test_a_later_plan_replaces_the_first() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        run.record_plan(["one"])
        run.record_plan(["two"], reason="one is done")
    plans = [event.payload for event in run_events(memory) if isinstance(event.payload, PlanRecorded | PlanReplaced)]
    assert plans == [PlanRecorded('["one"]'), PlanReplaced('["two"]', "one is done")]


def test_a_plan_given_at_the_start_is_replaced_too() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report", plan=[]) as run:
        run.record_plan(["one"])
    assert PlanReplaced('["one"]', "") in [event.payload for event in run_events(memory)]


def test_a_run_may_have_an_id_of_its_own_and_metadata() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report", run_id="r-7", actor="ops") as run:
        assert run.run_id == "r-7"
    assert {(event.envelope.run_id, event.envelope.actor) for event in run_events(memory)} == {("r-7", "ops")}


def test_a_result_that_json_cannot_hold_fails_the_run() -> None:
    client, memory = memory_client()
    with (
        client,
        client.session(user_id="u") as session,
        pytest.raises(Invalid, match="result cannot be written"),
        session.run("report") as run,
    ):
        run.result = {"when": float("inf")}
    failed = run_events(memory)[-1].payload
    assert isinstance(failed, RunFailed)
    assert (failed.error.error_class, failed.error.code) == ("fatal", "Invalid")


@pytest.mark.parametrize(("name", "value"), [("input", {1: 2}), ("plan", float("nan"))])
def test_what_json_cannot_hold_is_refused_before_anything_is_sent(name: str, value: object) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, pytest.raises(Invalid, match=name):
        session.run("report", **{name: value})  # type: ignore[arg-type]
    assert run_events(memory) == []


def test_the_end_of_an_attached_run_is_not_sent_while_its_session_is_paused() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with session.run("report"):
            session.pause()
        session.resume()
    assert not [event for event in run_events(memory) if isinstance(event.payload, RunCompleted)]


@pytest.mark.parametrize("policy", ["spool", "block"])
def test_a_run_in_asyncio(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> InMemoryTransport:
        settings = ProducerSettings.from_env({}, delivery_policy=policy)
        sync_client, memory = memory_client(settings=settings)
        monkeypatch.setattr(InMemoryTransport, "may_block", policy == "block")
        client = AsyncSessionClient.wrap(sync_client)
        async with client, client.session(user_id="u") as session:
            async with session.run("report", mode="detached") as run:
                await session.info("inside")
                run.result = 1
            with pytest.raises(ValueError, match="broken"):
                async with session.run("other"):
                    raise ValueError("broken")
        return memory

    events = run_events(asyncio.run(main()))
    first, second = list(dict.fromkeys(event.envelope.run_id for event in events))
    kinds = [type(event.payload) for event in events if event.envelope.run_id == first]
    assert kinds == [RunStarted, RunRunning, SessionActivity, RunCompleted]
    assert [type(event.payload) for event in events if event.envelope.run_id == second][-1] is RunFailed


def test_a_detached_run_goes_on_while_its_session_is_held() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with session.run("report", mode="detached") as run:
            session.pause()
            run.report_progress(0.5)
            with pytest.raises(NotAllowed):
                session.activity("outside any run")
        session.resume()
    kinds = [type(event.payload) for event in run_events(memory)]
    assert kinds == [RunStarted, RunRunning, SessionPaused, RunRunning, ProgressReported, RunCompleted]
    assert memory.rejected_records() == []


def test_an_attached_run_is_paused_and_given_up_with_its_session() -> None:
    client, memory = memory_client()
    session = client.create(user_id="u", limits=Limits(idle_ms=60_000))
    session.start()
    with session.run("report") as run:
        run_id = run.run_id
        memory.advance(61)
        memory.advance(301)
    changed = [audit for audit in memory.audit() if audit.run_id == run_id]
    assert [(audit.kind, audit.from_run_state, audit.to_run_state) for audit in changed] == [
        ("run", "running", "paused"),
        ("run", "paused", "failed"),
    ]
    assert [audit.reason_code for audit in changed] == ["session_timed_out", "session_ended"]
    client.close()


def test_an_event_of_a_run_that_never_began_is_rejected() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        session.progress(1, run_id="nowhere")
    assert [rejection.reason for rejection in memory.rejected_records()] == ["unknown_run"]


def test_a_detached_run_ends_after_its_session_was_closed_and_no_other_work_does() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        runs = {mode: session.run("report", run_id=mode, mode=mode) for mode in ("attached", "detached")}
        for run in runs.values():
            run.__enter__()
        session.close()
        assert memory.view_session(session).state == "Terminated"
        with pytest.raises(SessionEnded):
            runs["attached"].report_progress(1, 2)
        with pytest.raises(SessionEnded):
            session.run("another", mode="detached").__enter__()
        with pytest.raises(SessionEnded):
            session.activity("llm")
        runs["detached"].step("draft", lambda: "text")
        runs["detached"].result = "text"
        runs["detached"].__exit__(None, None, None)
        completed = memory.verdicts()[-1]
        assert (completed.event_type, completed.outcome) == ("run_completed", "applied")
    assert memory.rejections() == []


def test_a_detached_run_that_ends_after_its_session_was_archived_is_rejected() -> None:
    client, memory = memory_client(on_rejected=lambda _: None)
    with client, client.session(user_id="u") as session:
        run = session.run("report", mode="detached")
        run.__enter__()
        session.close()
        memory.advance(3 * 86_400)
        assert memory.audit(session.session_id)[-1].transition == "T14"
        run.__exit__(None, None, None)
    assert [(judged.event_type, judged.reason) for judged in memory.rejections()] == [
        ("run_completed", "session_archived")
    ]
