"""The outside in memory: events are judged by the processor's rules, on a clock that tests move."""

import asyncio
import gc
import subprocess
import sys
import time
import uuid

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    CleanupAction,
    CleanupRequest,
    Invalid,
    Limits,
    ProducerError,
    Refused,
    Session,
    SessionClient,
    SessionLost,
)
from sessionary.producers.session.state_json import full_snapshot
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.events import SessionActivity, SessionCreated, SessionResumed, SnapshotCreated, UsageRecorded
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.session.values import REDELIVERY_MS_MAX
from tests.core.producers.control.test_cleanup_responder import request

IDLE = Limits(idle_ms=120_000)
IDS = [str(uuid.uuid5(uuid.NAMESPACE_OID, "memory"))]


def reasons(memory: InMemoryTransport) -> list[str]:
    return [f"{refusal.reason}" for refusal in memory.refusals()]


def timeouts(memory: InMemoryTransport) -> list[tuple[str, str]]:
    return [(f"{line.to_state}", line.reason_code) for line in memory.audit() if line.fired_at]


# Verdicts


def test_work_in_a_paused_session_is_refused_as_the_processor_does() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        session.pause("lunch")
        session._emitter.emit(SessionActivity("work"))  # past whatever the client knows itself
        (refusal,) = memory.refusals()
        assert refusal == memory.verdicts()[-1]
        assert (refusal.event_type, refusal.outcome, refusal.reason) == (
            "session_activity",
            "refused",
            "illegal_transition",
        )
        assert "Paused" in f"{refusal.detail}"
        assert memory.rejections()[-1].event_id == refusal.event.envelope.event_id
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
    assert memory.refusals() == []
    assert not memory.verdicts("another")
    assert not memory.audit("another")
    assert not memory.events("another")


def test_limits_outside_their_ranges_are_refused() -> None:
    client, memory = memory_client()
    with client:
        client.session(user_id="u")
        created = memory.events()[0].payload
        assert isinstance(created, SessionCreated)
        emitter = client._new_emitter(SessionKey("acme", IDS[0]), "u", ())
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
        assert memory.refusals() == []


@pytest.mark.parametrize(("rules", "expected"), [(1, []), (2, ["not_member"]), (None, ["not_member"])])
def test_the_rules_are_the_newest_unless_others_are_asked_for(rules: int | None, expected: list[str]) -> None:
    owner, memory = memory_client("acme", "billing", rules=rules)
    other, _ = memory_client("acme", "shop", memory=memory)
    session = owner.session(user_id="u")
    assert memory.view_session(session).rules == (rules or NEWEST_RULES.version)
    head = full_snapshot("{}", 1, None)
    other.attach(session.session_id)._emitter.emit(SnapshotCreated(head))
    assert reasons(memory) == expected


def test_unknown_rules_are_an_error() -> None:
    with pytest.raises(Invalid, match="rules 7 are unknown: use one of 1, 2"):
        memory_client(rules=7)
    client, memory = memory_client()
    with client, pytest.raises(Invalid, match="rules are those of the memory"):
        memory_client(memory=memory, rules=1)


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


def test_a_refusal_that_the_test_asks_for_changes_nothing() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        session.pause()
        memory.refuse_next("version_conflict")
        with pytest.raises(Refused, match="version_conflict"):
            session.resume()
        assert reasons(memory) == ["version_conflict"]
        assert memory.view_session(session).state == "Paused"
        session.resume()


# The clock


def test_time_stands_still_unless_the_test_moves_it() -> None:
    client, memory = memory_client()
    with client:
        client.session(user_id="u")
        began = memory.now_ms
        time.sleep(0.002)
        assert memory.now_ms == began
        memory.advance(1.5)
        assert memory.now_ms == began + 1_500
        with pytest.raises(Invalid, match="a clock never goes back"):
            memory.advance(-1)


def test_a_session_without_work_times_out_though_it_beats() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", limits=IDLE)
        memory.advance(100)
        session.activity("work")
        memory.advance(119.999)
        assert memory.view_session(session).state == "Active"
        memory.advance(0.001)
        assert memory.view_session(session).state == "Timeout"
        assert timeouts(memory) == [("Timeout", "idle")]
        (line,) = (line for line in memory.audit() if line.fired_at)
        assert line.fired_at == line.due_at == memory.now_ms * 1_000
        assert len(memory.heartbeats()) == 22  # one each 10 s


def test_a_silenced_session_times_out_of_inactivity() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        memory.advance(600)
        assert memory.view_session(session).state == "Active"
        memory.silence(session)
        memory.advance(60)
        assert timeouts(memory) == [("Timeout", "inactive")]
        beats = len(memory.heartbeats())
        memory.silence(session, silent=False)
        memory.advance(10)
        assert len(memory.heartbeats()) == beats + 1


@pytest.mark.parametrize("end", ["detach", "forget", "close client"])
def test_what_beats_no_more_times_out(end: str) -> None:
    client, memory = memory_client()
    session: Session | None = client.session(user_id="u")
    assert session is not None
    session_id = session.session_id
    if end == "detach":
        session.detach()
    elif end == "forget":
        session = None
        gc.collect()
    else:
        client.close()
    memory.advance(60)
    assert memory.view_session(session_id).state == "Timeout"
    assert memory.heartbeats() == []
    client.close()


def test_every_clock_fires_in_its_order() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", limits=IDLE)
        memory.advance(86_400)
        assert [(line.to_state, line.reason_code) for line in memory.audit() if line.fired_at is not None] == [
            ("Timeout", "idle"),
            ("Terminated", "timeout_cleanup"),
            ("Archived", "archived"),
        ]
        with pytest.raises(SessionLost, match="was archived"):
            session.sync()


def test_a_resume_within_the_grace_period_makes_a_session_active_again() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", limits=IDLE, state={"n": 1})
        memory.advance(120)
        assert session.sync().state == "Timeout"
        assert session.resume() == {"n": 1}
        assert session.epoch == 2
        session.activity("work")
        assert memory.verdicts()[-1].outcome == "applied"


def test_events_have_the_fake_time() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        session.activity("before")
        memory.advance(500)
        session.activity("after")
        before, after = (event.envelope.occurred_at for event in memory.events()[-2:])
        assert 500_000_000 <= after - before < 600_000_000
        assert memory.verdicts()[-1].at_ms == memory.now_ms


def test_a_gravestone_vanishes_too() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        session.close()
        memory.advance(REDELIVERY_MS_MAX / 1_000 + 2 * 86_400)
        client.session(user_id="u")
        with pytest.raises(SessionLost, match=r"was archived|is not known"):
            memory.view_session(session)


# Clean-up


def cleaning_client(service_id: str = "service") -> tuple[SessionClient, InMemoryTransport, list[str]]:
    client, memory = memory_client(service_id=service_id)
    calls: list[str] = []

    def handler(asked: CleanupRequest) -> list[CleanupAction]:
        calls.append(asked.reason_code)
        return [CleanupAction(name, done=True, at=asked.requested_at) for name in asked.actions]

    client.on_cleanup(handler)
    return client, memory, calls


def test_a_request_reaches_the_handler_when_time_advances() -> None:
    client, memory, calls = cleaning_client()
    with client:
        session = client.session(user_id="u")
        session.close()
        assert [asked.reason_code for asked in memory.cleanups()] == ["closed"]
        assert calls == []
        memory.advance(0)
        assert calls == ["closed"]
        released = memory.verdicts(session.session_id)[-2:]
        assert [(judged.event_type, judged.outcome) for judged in released] == [
            ("resources_released", "applied"),
            ("session_phase_changed", "applied"),
        ]
        assert [line.kind for line in memory.audit()][-1] == "release"
        memory.advance(60)  # the delay from a clean-up to Archived
        assert memory.audit()[-1].to_state == "Archived"
        memory.advance(0)
        assert calls == ["closed"]


def test_a_timeout_asks_for_clean_up_at_its_time() -> None:
    client, memory, calls = cleaning_client()
    with client:
        session = client.session(user_id="u", limits=IDLE)
        memory.advance(121)
        assert calls == ["idle"]
        assert memory.view_session(session).phase == "released"
        (asked,) = memory.cleanups(session.session_id)
        assert asked.requested_at == (memory.now_ms - 1_000) * 1_000


def test_a_request_waits_for_a_handler_of_its_service() -> None:
    client, memory = memory_client("acme", "billing")
    other, _ = memory_client("acme", "shop", memory=memory)
    calls: list[str] = []
    other.on_cleanup(lambda asked: calls.append("shop"))
    client.session(user_id="u").close()
    memory.advance(1)
    assert calls == []
    client.on_cleanup(lambda asked: calls.append("billing"))
    memory.advance(1)
    assert calls == ["billing"]


def test_time_is_not_advanced_by_a_handler() -> None:
    client, memory = memory_client()
    errors: list[RuntimeError] = []

    def handler(asked: CleanupRequest) -> None:
        try:
            memory.advance(1)
        except RuntimeError as error:
            errors.append(error)

    client.on_cleanup(handler)
    with client:
        client.session(user_id="u").close()
        memory.advance(1)
    assert [str(error) for error in errors] == [
        "advance is running already: call it neither in a handler nor in two threads"
    ]


def test_without_a_handler_a_request_is_an_error() -> None:
    client, memory = memory_client()
    with client, pytest.raises(ProducerError):
        memory.request_cleanup(request())


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
    assert memory.refusals() == []


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
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True, timeout=60)
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
