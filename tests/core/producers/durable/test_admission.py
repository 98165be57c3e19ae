"""Runs of a client in memory that wait for their tenant's quota, are rejected, or give up."""

import asyncio
from contextvars import copy_context

import pytest

from sessionary.producers import QuotaExceeded, Rejected, Run, RunOver, Session, SessionClient
from sessionary.producers.durable.flow import Flow
from sessionary.producers.testing import InMemoryTransport, MemoryQuota, memory_client
from sessionary.producers.testing.memory_runs import MemoryRuns
from sessionary.schemas.errors import Invalid
from sessionary.schemas.types import Limits


def begin(over: str = "queue", runs: int = 1) -> tuple[SessionClient, Session, InMemoryTransport]:
    client, memory = memory_client(quota=MemoryQuota(runs, "reject" if over == "reject" else "queue"))
    return client, client.session(user_id="u1"), memory


def state_of(memory: InMemoryTransport, session: Session, run: Run) -> str | None:
    view = MemoryRuns(memory).fetch_run(session.session_id, run.run_id, None, 1.0)
    return None if view is None else view.state


def test_a_run_within_the_quota_begins_and_frees_its_slot() -> None:
    client, session, memory = begin()
    with client:
        for _ in range(3):
            with session.run("report") as run:
                assert state_of(memory, session, run) == "running"
            assert state_of(memory, session, run) == "completed"
    types = [event.envelope.event_type for event in memory.events() if event.envelope.run_id]
    assert types == ["run_started", "run_running", "run_completed"] * 3


def test_a_run_over_the_quota_waits_for_a_free_slot() -> None:
    """In memory, who waits moves the clock: at last the first run's limit is over."""
    client, session, memory = begin()
    with client:
        brief = client.session(user_id="u1", limits=Limits(attached_run_ms=60_000))
        first, second = brief.run("report"), session.run("report")
        copy_context().run(first.__enter__)  # it is never left, and must not be the current run of later tests
        with second:
            assert state_of(memory, brief, first) == "failed"
            assert state_of(memory, session, second) == "running"
        assert state_of(memory, session, second) == "completed"
    changes = [(line.run_id, line.to_run_state) for line in memory.audit() if line.kind == "run"]
    assert changes == [
        *((first.run_id, "queued"), (first.run_id, "started")),
        *((second.run_id, "queued"), (first.run_id, "failed"), (second.run_id, "started")),
    ]


def test_a_run_over_the_quota_is_rejected() -> None:
    client, session, memory = begin("reject")
    with client, session.run("report"):
        other = session.run("report")
        with pytest.raises(QuotaExceeded) as raised, other:
            raise AssertionError("the block must not begin")
        assert (raised.value.limit, raised.value.tenant_id, raised.value.waited_s) == ("concurrent_runs", "acme", None)
        assert raised.value.run_id == other.run_id
        assert raised.value.retryable
        assert state_of(memory, session, other) is None
    (rejected,) = (line for line in memory.audit() if line.event_type == "run_rejected")
    assert (rejected.run_id, rejected.reason_code) == (other.run_id, "quota_exceeded")


def test_a_run_waits_for_the_next_window_of_tokens() -> None:
    client, memory = memory_client(quota=MemoryQuota(5, tokens=100, token_window_s=600))
    with client, client.session(user_id="u1") as session, client.session(user_id="u1") as other:
        session.usage(tokens_in=60, tokens_out=39)
        with other.run("report"):
            other.usage(tokens_in=1, tokens_out=0)
        began_ms = memory.now_ms
        with session.run("report", quota_wait_s=900) as run:
            assert state_of(memory, session, run) == "running"
            assert memory.now_ms // 600_000 == began_ms // 600_000 + 1
        with other.run("report"):
            assert memory.now_ms // 600_000 == began_ms // 600_000 + 1
    assert memory.rejections() == []


def test_a_run_is_rejected_once_the_tokens_are_used_up() -> None:
    client, memory = memory_client(quota=MemoryQuota(5, "reject", tokens=10))
    with client, client.session(user_id="u1") as session:
        session.usage(tokens_in=10, tokens_out=0)
        with pytest.raises(QuotaExceeded, match="at its limit of concurrent_runs or of tokens; try"):
            session.run("report").__enter__()
    (rejected,) = (line for line in memory.audit() if line.event_type == "run_rejected")
    assert rejected.reason == "Run rejected: tenant acme has used its 10 tokens of this window"


def test_a_run_that_waited_long_enough_is_cancelled() -> None:
    client, session, memory = begin()
    with client, session.run("report"):
        other = session.run("report", quota_wait_s=0)
        with pytest.raises(QuotaExceeded, match="waited 0 s in vain") as raised:
            other.__enter__()
        assert raised.value.waited_s == 0
        assert state_of(memory, session, other) == "cancelled"


def test_with_asyncio_a_run_is_rejected_too() -> None:
    client, session, _ = begin("reject")

    async def story() -> None:
        async with session.run("report"):
            with pytest.raises(QuotaExceeded):
                await session.run("report").__aenter__()
        async with session.run("report"):
            pass

    with client:
        asyncio.run(story())


def test_a_resumed_run_asks_again() -> None:
    client, session, memory = begin("reject")
    with client:
        run = session.run("report", run_id="r1")
        with pytest.raises(TimeoutError), run:
            raise TimeoutError
        with session.run("other"), pytest.raises(QuotaExceeded):
            session.resume_run("r1").__enter__()
        assert state_of(memory, session, run) == "failed"
        with session.resume_run("r1"):
            assert state_of(memory, session, run) == "running"
        assert state_of(memory, session, run) == "completed"


def test_a_rejected_beginning_is_no_matter_of_quotas() -> None:
    client, session, _ = begin()
    with client, session.run("report", run_id="r1"), pytest.raises(Rejected, match="illegal_transition"):
        session.run("report", run_id="r1").__enter__()


def test_a_memory_has_one_quota() -> None:
    _, memory = memory_client(quota=MemoryQuota(1))
    with pytest.raises(Invalid, match="quota"):
        memory_client(memory=memory, quota=MemoryQuota(2))


def test_a_slot_that_may_be_freed_meanwhile_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, memory = begin()
    limits = Limits(attached_run_ms=60_000)
    seen = Run._ask_again_if_old

    def stand_still_and_ask(run: Run, admitted_s: float | None) -> Flow[None]:
        memory.advance(61)  # the limit of an attached run is over
        return seen(run, admitted_s)

    monkeypatch.setattr(Run, "_ask_again_if_old", stand_still_and_ask)
    with client:
        brief = client.session(user_id="u1", limits=limits)
        with pytest.raises(RunOver, match="it is failed"), brief.run("report"):
            raise AssertionError("the block must not begin")
    assert memory.rejections() == []
