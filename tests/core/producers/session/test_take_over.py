"""Clients that take a session over, judged by the processor's own fold."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    EventRejected,
    ProducerConflict,
    ProducerSettings,
    Rejected,
    SessionClient,
    SessionEnded,
    SessionFenced,
)
from sessionary.producers.ports import KnownSession, SessionChanges, SessionView, Verdict
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.events import SessionTakenOver
from sessionary.stream_processors.core.sequencing import IDS_KEPT
from tests.core.producers.judged_memory import HeldReceipts, JudgedMemory, copy_id
from tests.support.waiting import wait_until

SETTINGS = ProducerSettings.from_env({})


def test_a_new_process_takes_over_and_the_former_one_is_fenced_off() -> None:
    kafka = JudgedMemory()
    first, _ = kafka.client(agent_id="agent-1")
    second, _ = kafka.client(agent_id="agent-2")
    session = first.session(user_id="u", state={"n": 1})
    taken = second.attach(session.session_id, take_over=True)
    assert (taken.epoch, taken.state, taken.local_state) == (2, {"n": 1}, "Active")
    (line,) = kafka.rig.audits()
    assert line.kind == "take_over"
    assert line.reason == (
        f"agent-2 of billing (process {second.producer_id}) took over from "
        f"agent-1 of billing (process {first.producer_id})"
    )
    session.activity("still here")
    assert kafka.outcomes[-1] == "rejected stale_epoch"
    with pytest.raises(SessionFenced) as raised:
        session.sync()
    assert (raised.value.holder, raised.value.epoch) == (second.producer_id, 2)
    for verb in (lambda: session.activity("x"), session.close, session.resume):
        with pytest.raises(SessionFenced, match="in epoch 2") as raised:
            verb()
        assert (raised.value.holder, raised.value.epoch) == (second.producer_id, 2)
    assert taken.update_state({"n": 2}) == 2
    taken.close()
    assert kafka.outcomes[-1] == "applied"


def test_a_fenced_session_sends_no_heartbeat_and_its_block_sends_nothing() -> None:
    kafka = JudgedMemory()
    first, second = kafka.client()[0], kafka.client()[0]
    with first.session(user_id="u") as session:
        second.attach(session.session_id, take_over=True)
        with pytest.raises(SessionFenced):
            session.sync()
        sent = len(kafka.outcomes)
        assert not session.core.beats.send_heartbeat()
    assert len(kafka.outcomes) == sent


def test_the_former_holder_takes_the_session_back() -> None:
    kafka = JudgedMemory()
    first, second = kafka.client()[0], kafka.client()[0]
    session = first.session(user_id="u")
    taken = second.attach(session.session_id, take_over=True)
    back = first.attach(session.session_id, take_over=True)
    assert back.epoch == 3
    back.activity("work")
    assert kafka.outcomes[-1] == "applied"
    with pytest.raises(SessionFenced):
        taken.sync()
    assert back.sync().holder == first.producer_id


def test_processes_that_share_a_session_by_attach_stay_as_they_were() -> None:
    kafka = JudgedMemory()
    first, second = kafka.client()[0], kafka.client()[0]
    session = first.session(user_id="u")
    shared = second.attach(session.session_id)
    shared.pause()
    session.sync()
    shared.resume()
    assert session.sync().epoch == 2
    session.activity("work")
    shared.activity("work")
    assert kafka.outcomes[-2:] == ["applied", "applied"]


def test_another_service_is_rejected_while_the_owner_is_alive() -> None:
    kafka = JudgedMemory()
    owner, shop = kafka.client()[0], kafka.client(service_id="shop", agent_id="agent-9")[0]
    session = owner.session(user_id="u")
    with pytest.raises(Rejected, match="session_taken_over was rejected: owner_alive") as raised:
        shop.attach(session.session_id, take_over=True)
    assert raised.value.reason == "owner_alive"
    assert session.sync().owner_service == "billing"
    kafka.rig.advance(20_000)
    taken = shop.attach(session.session_id, take_over=True)
    assert taken.sync().owner_service == "shop"
    assert taken.update_state({"n": 1}) == 2
    assert kafka.outcomes[-1] == "applied"


@pytest.mark.parametrize("takes", [True, False])
def test_a_service_takes_at_once_what_an_operator_claimed_for_it(*, takes: bool) -> None:
    reported: list[object] = []
    owner, memory = memory_client(service_id="billing", on_fenced=reported.append)
    shop, _ = memory_client(memory=memory, service_id="shop")
    session = owner.session(user_id="u", state={"n": 1})
    with pytest.raises(Rejected):
        shop.claim(session.session_id)
    claimed = memory.operator.claim(session, "shop", "billing sends nonsense")
    assert isinstance(claimed.event.payload, SessionTakenOver)
    assert claimed.event.payload.reason == "billing sends nonsense"
    memory.advance(1)
    assert [type(each) for each in reported] == [SessionFenced]
    with pytest.raises(SessionFenced):
        session.sync()
    taken = shop.claim(session.session_id) if takes else shop.attach(session.session_id)
    assert (taken.epoch, taken.state, taken.local_state) == (3 if takes else 2, {"n": 1}, "Active")
    memory.advance(120)  # it beats
    view = memory.view_session(session)
    assert (view.owner_service, view.state, view.holder == shop.producer_id) == ("shop", "Active", takes)
    assert taken.update_state({"n": 2}) == 2
    taken.close()
    assert memory.view_session(session).reason_code == "closed"


def test_a_claimed_session_times_out_unless_a_process_of_its_service_takes_it() -> None:
    owner, memory = memory_client(service_id="billing")
    shop, _ = memory_client(memory=memory, service_id="shop")
    session = owner.session(user_id="u")
    memory.operator.claim(session, "shop")
    memory.advance(61)
    assert memory.view_session(session).state == "Timeout"
    taken = shop.claim(session.session_id)
    taken.resume()
    assert memory.view_session(session).state == "Active"


def test_a_rejected_take_over_sends_no_heartbeat() -> None:
    kafka = JudgedMemory()
    owner, shop = kafka.client()[0], kafka.client(service_id="shop")[0]
    session = owner.session(user_id="u")
    with pytest.raises(Rejected):
        shop.attach(session.session_id, take_over=True)
    kafka.advance(60)
    assert {beat.envelope.service_id for beat in kafka.heartbeats()} == {"billing"}


def test_a_session_that_ended_cannot_be_taken_over() -> None:
    kafka = JudgedMemory()
    first, second = kafka.client()[0], kafka.client()[0]
    session = first.session(user_id="u")
    session.close()
    with pytest.raises(SessionEnded):
        second.attach(session.session_id, take_over=True)


def test_a_paused_session_is_taken_over_and_resumed() -> None:
    kafka = JudgedMemory()
    first, second = kafka.client()[0], kafka.client()[0]
    session = first.session(user_id="u", state={"n": 1})
    session.pause()
    taken = second.attach(session.session_id, take_over=True)
    assert (taken.local_state, taken.epoch) == ("Paused", 2)
    assert taken.resume() == {"n": 1}
    assert taken.epoch == 3


class ForgetfulMemory(InMemoryTransport):
    """A processor whose partition has moved: it keeps no verdict."""

    holder: str | None = None

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        view = super().fetch_session(session_id, after, timeout_s)
        verdict = None if after is None else Verdict(applied=False, reason=None, kept=False)
        return view._replace(verdict=verdict, holder=self.holder or view.holder)


def test_without_a_verdict_the_holder_says_who_took_over() -> None:
    kafka = ForgetfulMemory()
    first, second = (
        SessionClient(tenant_id="acme", service_id="s", agent_id=name, settings=SETTINGS, ports=memory_ports(kafka))
        for name in ("a", "b")
    )
    session = first.session(user_id="u")
    assert second.attach(session.session_id, take_over=True).epoch == 2
    kafka.holder = "another"
    with pytest.raises(Rejected, match="UNKNOWN"):
        second.attach(session.session_id, take_over=True)


def test_the_in_memory_client_grants_and_rejects_take_overs() -> None:
    client, memory = memory_client(settings=SETTINGS)
    session = client.session(user_id="u")
    assert client.attach(session.session_id, take_over=True).epoch == 2
    assert memory.events()[-1].envelope.event_type == "session_taken_over"
    memory.reject_next("owner_alive")
    with pytest.raises(Rejected, match="owner_alive"):
        client.attach(session.session_id, take_over=True)


def test_the_asyncio_client_takes_over_too() -> None:
    kafka = JudgedMemory()
    first, second = kafka.client()[0], kafka.client()[0]
    session = first.session(user_id="u")

    async def take_over() -> int:
        taken = await AsyncSessionClient.wrap(second).attach(session.session_id, take_over=True)
        await taken.activity("work")
        return taken.epoch

    assert asyncio.run(take_over()) == 2
    assert kafka.outcomes[-1] == "applied"


def test_a_copied_process_that_is_far_behind_is_reported_by_its_next_poll_without_a_verb() -> None:
    kafka, errors = JudgedMemory(), list[Exception]()
    first, _ = kafka.client()
    second = kafka.polling_client(on_error=errors.append)
    copy_id(second, first)
    session = first.session(user_id="u")
    shared = second.attach(session.session_id)
    for n in range(2 * IDS_KEPT):
        session.activity(f"work {n}")
    shared.activity("lost without an error until now")
    assert kafka.outcomes[-1] == "duplicate"
    second.core.watch.poll_now()
    (error,) = errors
    assert isinstance(error, ProducerConflict)
    assert (error.session_id, error.producer_id) == (session.session_id, first.producer_id)
    second.core.watch.poll_now()
    shared.activity("work")
    assert kafka.outcomes[-1] == "applied"
    session.activity("work")
    assert kafka.outcomes[-1] == "applied"
    assert len(errors) == 1


def test_a_poll_that_finds_a_copied_process_while_another_call_waits_for_it_disturbs_nothing() -> None:
    kafka, errors = HeldReceipts(), list[Exception]()
    first, _ = kafka.client()
    second = kafka.polling_client(on_error=errors.append)
    copy_id(second, first)
    session = first.session(user_id="u")
    shared = second.attach(session.session_id)
    session.activity("work")
    session.activity("more work")
    kafka.hold = True
    shared.activity("lost")
    with ThreadPoolExecutor() as pool:
        judged = pool.submit(shared.sync)
        waiting = shared.core.emitter._sequence._changed
        wait_until(lambda: bool(waiting._waiters), 10, "the call to wait")  # type: ignore[attr-defined]
        second.core.watch.poll_now()
        kafka.deliver()
        view = judged.result(60)
    assert view.verdict is not None
    assert view.verdict.reason == "producer_conflict"
    shared.sync()
    assert [type(error) for error in errors] == [ProducerConflict, EventRejected]
    shared.activity("work")
    assert kafka.outcomes[-1] == "applied"
    kafka.deliver()
    view = shared.sync()
    assert view.verdict is not None
    assert view.verdict.applied
    assert len(errors) == 2


def test_a_process_whose_events_are_judged_while_it_polls_keeps_its_id() -> None:
    kafka, errors = JudgedMemory(), list[Exception]()
    client = kafka.polling_client(on_error=errors.append)
    session, producer_id = client.session(user_id="u"), client.producer_id
    ask = kafka.poll_sessions

    def ask_late(known: Sequence[KnownSession], timeout_s: float) -> SessionChanges:
        session.activity("work")
        return ask(known, timeout_s)

    kafka.poll_sessions = ask_late  # type: ignore[method-assign]
    client.core.watch.poll_now()
    assert (errors, session.core.emitter.producer_id) == ([], producer_id)


def test_a_copied_process_is_reported_and_goes_on_with_an_id_of_its_own() -> None:
    kafka = JudgedMemory()
    first, _ = kafka.client()
    second, errors = kafka.client()
    copy_id(second, first)
    session = first.session(user_id="u")
    shared = second.attach(session.session_id)
    shared.activity("lost without an error until now")
    assert kafka.outcomes[-1] == "rejected producer_conflict"
    view = shared.sync()
    assert view.verdict is not None
    assert view.verdict.reason == "producer_conflict"
    (error,) = errors
    assert isinstance(error, ProducerConflict)
    assert (error.session_id, error.producer_id) == (session.session_id, first.producer_id)
    shared.activity("work")
    assert kafka.outcomes[-1] == "applied"
    shared.sync()
    assert len(errors) == 1
    session.activity("work")
    assert kafka.outcomes[-1] == "applied"
