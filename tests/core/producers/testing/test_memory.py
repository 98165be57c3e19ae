"""The outside in memory: events are judged by the processor's rules, on a clock that tests move."""

import asyncio
import subprocess
import sys
import uuid

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    Invalid,
    Limits,
    Rejected,
    SessionClient,
    SessionLost,
)
from sessionary.producers.testing import InMemoryTransport, MemoryQuota, memory_client, memory_ports
from sessionary.schemas.events import SessionActivity, SessionCreated, SessionResumed, UsageRecorded
from sessionary.schemas.ids import SessionKey

IDLE = Limits(idle_ms=120_000)
IDS = [str(uuid.uuid5(uuid.NAMESPACE_OID, "memory"))]


def reasons(memory: InMemoryTransport) -> list[str]:
    return [f"{rejection.reason}" for rejection in memory.rejections()]


# Verdicts


def test_work_in_a_paused_session_is_rejected_as_the_processor_does() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        session.pause("lunch")
        session.core.emitter.emit(SessionActivity("work"))  # past whatever the client knows itself
        (rejection,) = memory.rejections()
        assert rejection == memory.verdicts()[-1]
        assert (rejection.event_type, rejection.outcome, rejection.reason) == (
            "session_activity",
            "rejected",
            "illegal_transition",
        )
        assert "Paused" in f"{rejection.detail}"
        assert memory.rejected_records()[-1].event_id == rejection.event.envelope.event_id
        verdict = session.sync().verdict
        assert verdict is not None
        assert (verdict.applied, verdict.reason) == (False, "illegal_transition")


def test_each_applied_event_has_its_verdict_in_order() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        session.activity("a")
    assert [judged.event for judged in memory.verdicts()] == memory.events()
    assert {judged.outcome for judged in memory.verdicts()} == {"applied"}
    assert [judged.offset for judged in memory.verdicts()] == list(range(len(memory.events())))
    assert memory.rejections() == []
    assert not memory.verdicts("another")
    assert not memory.audit("another")
    assert not memory.events("another")


def test_limits_outside_their_ranges_are_rejected() -> None:
    client, memory = memory_client()
    with client:
        client.session(user_id="u")
        created = memory.events()[0].payload
        assert isinstance(created, SessionCreated)
        emitter = client.core.new_emitter(SessionKey("acme", IDS[0]), "u", ())
        emitter.emit(created._replace(limits=Limits(model_ms=1)))
        assert reasons(memory) == ["invalid_limits"]
        with pytest.raises(SessionLost):
            memory.view_session(IDS[0])


def test_a_repetition_is_a_duplicate() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        session.activity("a")
        memory.send(memory.records()[-1])
        assert memory.verdicts()[-1].outcome == "duplicate"
        assert memory.verdicts()[-1].verdict.applied
        assert memory.rejections() == []


def test_a_memory_has_one_quota() -> None:
    client, memory = memory_client()
    with client, pytest.raises(Invalid, match="quota is that of the memory"):
        memory_client(memory=memory, quota=MemoryQuota(concurrent_runs=1))


def test_resume_returns_the_content_of_the_row() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", state={"n": 1})
        session.update_state({"n": 2})
        session.pause()
        assert memory.view_session(session).state == "Paused"
        assert session.resume() == {"n": 2}
        assert (session.epoch, memory.view_session(session.session_id).epoch) == (2, 2)
        session.error(TimeoutError("x"))
        assert session.recover() == {"n": 2}
        assert memory.find_row(session.session_id).recovery_attempts == 1


def test_two_clients_share_a_memory_as_two_processes_share_a_processor() -> None:
    first, memory = memory_client("acme", "billing", "agent-1")
    second, same = memory_client("acme", "billing", "agent-2", memory=memory)
    assert same is memory
    session = first.session(user_id="u", state={"n": 1})
    first.close()
    taken = second.attach(session.session_id, take_over=True)
    assert (taken.epoch, taken.state) == (2, {"n": 1})
    taken.activity("goes on")
    assert memory.verdicts()[-1].outcome == "applied"
    assert [line.kind for line in memory.audit()][-1] == "take_over"


def test_an_unknown_session_is_lost() -> None:
    client, memory = memory_client()
    with client, pytest.raises(SessionLost, match="is not known"):
        memory.view_session("0b0e7f0a-0000-4000-8000-000000000000")


def test_a_rejection_that_the_test_asks_for_changes_nothing() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        session.pause()
        memory.reject_next("version_conflict")
        with pytest.raises(Rejected, match="version_conflict"):
            session.resume()
        assert reasons(memory) == ["version_conflict"]
        assert memory.view_session(session).state == "Paused"
        session.resume()


# Around it


def test_the_asyncio_client_is_judged_too() -> None:
    async def main() -> InMemoryTransport:
        client, memory = memory_client()
        async with AsyncSessionClient.wrap(client).session(user_id="u", limits=IDLE) as session:
            memory.advance(60)
            memory.silence(session)
            memory.advance(60)
            assert (await session.sync()).state == "Timeout"
            await session.resume()
        return memory

    memory = asyncio.run(main())
    assert isinstance(memory.events()[-2].payload, SessionResumed)
    assert memory.rejections() == []


def test_a_client_of_the_users_own_is_judged_by_the_ports() -> None:
    memory = InMemoryTransport(partitions=1)
    with (
        SessionClient(tenant_id="t", service_id="s", agent_id="a", ports=memory_ports(memory)) as client,
        client.session(user_id="u") as session,
    ):
        session.usage(model="m", tokens_in=3)
        assert isinstance(memory.events()[-1].payload, UsageRecorded)
        memory.advance(30)
        assert len(memory.heartbeats()) == 3


_LOADED = """
import sys
import sessionary.producers.testing
before = set(sys.modules)
client, memory = sessionary.producers.testing.memory_client()
with client, client.session(user_id="u") as session:
    memory.advance(3600)
print("\\n".join(sorted(set(sys.modules) - before - set(sys.stdlib_module_names))))
"""


def test_the_judge_needs_only_what_the_core_install_has() -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True, timeout=300)
    loaded = [name for name in done.stdout.split() if not name.startswith("_")]
    core = ("sessionary.stream_processors.core", "sessionary.stream_processors.errors")
    allowed = ("sessionary.producers", "sessionary.schemas", *core)
    assert any(name.startswith(core[0]) for name in loaded)
    others = [
        name
        for name in loaded
        if not name.startswith(allowed) and name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert others == ["sessionary.stream_processors"]


def test_a_view_tells_the_last_rejections_and_why_the_session_is_in_its_state() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", limits=IDLE)
        event_id = session.emit(SessionResumed(None, None))
        memory.advance(120)
        view = memory.view_session(session)
        assert [(rejection.reason, rejection.event_id) for rejection in view.rejections] == [
            ("illegal_transition", event_id)
        ]
        assert (view.state, view.reason_code) == ("Timeout", "idle")
