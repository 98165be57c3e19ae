"""Sessions of a client in memory that wait for their tenant's quota, are rejected, or give up."""

import asyncio

import pytest

from sessionary.producers import AsyncSessionClient, QuotaExceeded, SessionClient, SessionEnded, Unavailable
from sessionary.producers.settings import ProducerSettings
from sessionary.producers.testing import InMemoryTransport, MemoryQuota, memory_client, memory_ports
from sessionary.schemas.types import Limits


def begin(over: str = "queue", sessions: int = 1) -> tuple[SessionClient, InMemoryTransport]:
    quota = MemoryQuota(5_000, "reject" if over == "reject" else "queue", live_sessions=sessions)
    return memory_client(quota=quota)


def test_a_session_within_the_quota_begins_and_frees_its_slot() -> None:
    client, memory = begin()
    with client:
        for _ in range(3):
            with client.session(user_id="u1") as session:
                assert session.sync().state == "Active"
    assert memory.rejections() == []
    kinds = [line.reason_code for line in memory.audit() if line.kind == "quota"]
    assert kinds == ["quota_granted"] * 3


def test_a_session_waits_for_the_next_window_of_tokens() -> None:
    client, memory = memory_client(quota=MemoryQuota(5, live_sessions=5, tokens=10, token_window_s=600))
    with client, client.session(user_id="u1") as session:
        session.usage(tokens_in=10, tokens_out=0)
        began_ms = memory.now_ms
        with client.session(user_id="u1", quota_wait_s=900):
            assert memory.now_ms // 600_000 == began_ms // 600_000 + 1


def test_without_a_limit_of_sessions_none_asks() -> None:
    client, memory = memory_client(quota=MemoryQuota(1))
    with client, client.session(user_id="u1"), client.session(user_id="u1"):
        pass
    assert [line for line in memory.audit() if line.kind == "quota"] == []


def test_a_session_over_the_quota_waits_for_a_free_slot() -> None:
    """In memory, who waits moves the clock: at last the first session's duration is over."""
    client, memory = begin()
    with client:
        brief = Limits(max_duration_ms=60_000, grace_ms=60_000, override=True)
        first = client.session(user_id="u1", limits=brief)
        with client.session(user_id="u2", quota_wait_s=600) as second:
            assert second.sync().state == "Active"
            assert first.sync().state == "Terminated"
            assert any(beat.envelope.session_id == second.session_id for beat in memory.heartbeats())
    assert memory.rejections() == []


def test_a_session_over_the_quota_is_rejected() -> None:
    rejected: list[object] = []
    client, memory = memory_client(quota=MemoryQuota(5_000, "reject", live_sessions=1), on_rejected=rejected.append)
    with client, client.session(user_id="u1"):
        with pytest.raises(QuotaExceeded) as raised:
            client.session(user_id="u2")
        error = raised.value
        assert (error.limit, error.tenant_id, error.waited_s, error.run_id) == ("live_sessions", "acme", None, None)
        assert error.retryable
        assert error.session_id is not None
        assert str(error).startswith(f"session {error.session_id} was rejected: tenant acme is at its limit of live_")
        memory.advance(120)
    (ended,) = (line for line in memory.audit() if line.session_id == error.session_id and line.transition == "T03")
    assert ended.reason_code == "quota_exceeded"
    assert rejected == [], "the caller was notified"


def test_a_rejected_session_that_nobody_started_is_reported_as_rejected() -> None:
    rejected: list[str] = []
    client, memory = memory_client(
        quota=MemoryQuota(5_000, "reject", live_sessions=1),
        on_rejected=lambda event: rejected.append(f"{event.event_type} {event.reason}"),
    )
    with client, client.session(user_id="u1"):
        client.create(user_id="u2")
        memory.advance(60)
        assert rejected == ["session_created quota_exceeded"]


def test_a_session_that_waited_long_enough_ends() -> None:
    client, memory = begin()
    with client, client.session(user_id="u1"):
        with pytest.raises(QuotaExceeded, match="waited 2 s in vain, and ended") as raised:
            client.session(user_id="u2", quota_wait_s=2)
        assert raised.value.waited_s == 2
        assert memory.view_session(f"{raised.value.session_id}").state == "Terminated"
    (ended,) = (line for line in memory.audit() if line.transition == "T03")
    assert (ended.reason_code, ended.reason) == ("connection_failed", "it waited 2 s for the quota")


def test_a_created_session_waits_when_it_is_started() -> None:
    client, memory = begin()
    with client:
        first = client.session(user_id="u1")
        second = client.create(user_id="u2")
        assert second.sync().awaits_quota
        first.close()
        with second.start():
            assert not second.sync().awaits_quota
    assert memory.rejections() == []


def test_a_session_that_ends_while_it_waits_says_so() -> None:
    client, memory = begin()
    with client, client.session(user_id="u1"):
        second = client.create(user_id="u2")
        memory.advance(61)  # nothing was heard of it
        with pytest.raises(SessionEnded, match="ended before it started: inactive"):
            second.start()


def test_with_asyncio_a_session_waits_and_is_rejected_too() -> None:
    _, memory = begin("reject")
    settings = ProducerSettings.from_env({}).model_copy(update={"quotas": True})

    async def story() -> None:
        ports = memory_ports(memory)
        client = AsyncSessionClient(
            tenant_id="acme", service_id="service", agent_id="agent", settings=settings, ports=ports
        )
        async with client:
            async with client.session(user_id="u1") as first:
                with pytest.raises(QuotaExceeded):
                    await client.session(user_id="u2").__aenter__()
                assert (await first.sync()).state == "Active"
            async with client.session(user_id="u2", quota_wait_s=1) as session:
                assert (await session.sync()).state == "Active"

    asyncio.run(story())


def test_a_session_waits_on_while_the_processor_does_not_answer() -> None:
    client, memory = begin()
    with client:
        first = client.session(user_id="u1")
        second = client.create(user_id="u2")
        first.close()
        memory.silence_control(silent=True)
        with pytest.raises(Unavailable):
            second.start(quota_wait_s=5)
        memory.silence_control(silent=False)
        assert memory.view_session(second).state == "Terminated"
        with client.session(user_id="u3") as third:
            assert third.sync().state == "Active"
