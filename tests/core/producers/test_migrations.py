"""Requests to take a session: delivered again, stale, of a state that moved, more than threads."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.producers import Session, SessionClient, Unavailable
from sessionary.producers.control.request_consumer import RequestBacklog
from sessionary.producers.errors import QueueFull
from sessionary.producers.migrations import MigrationAcceptor, hand_over_in_place
from sessionary.producers.ports import Receipt, SessionView
from sessionary.producers.session.core import SessionCore
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionMigrationOffered
from sessionary.schemas.records import MigrationRequest
from tests.support.waiting import wait_until


class Rig:
    """A session of billing, and acceptors of shipping, which get what a test passes."""

    def __init__(self) -> None:
        self.reported: list[Exception] = []
        self.arrived: list[Session] = []
        self.memory = InMemoryTransport()
        self.source = memory_client(service_id="billing", memory=self.memory, on_error=self.reported.append)[0]
        self.session = self.source.session(user_id="u", state={"n": 1})
        self.receipts: list[Receipt] = []

    def target(self) -> SessionClient:
        return memory_client(service_id="shipping", memory=self.memory, on_error=self.reported.append)[0]

    def acceptor(
        self, function: Callable[[Session], object] | None = None, concurrency: int = 16, *, in_place: bool = True
    ) -> MigrationAcceptor:
        hand_over = hand_over_in_place(function or self.arrived.append, self.reported.append)
        return MigrationAcceptor(
            self.target().core.open_attached, hand_over, concurrency, self.reported.append, in_place=in_place
        )

    def offer(self, session: Session | None = None, migration_id: str = "m1") -> MigrationRequest:
        (session or self.session).emit(SessionMigrationOffered(migration_id, "shipping", 30_000))
        return self.memory.migrations()[-1]

    def prepare(self, acceptor: MigrationAcceptor) -> MigrationRequest:
        acceptor(self.offer(), self.receipts.append)
        request = self.memory.migrations()[-1]
        assert request.step == "prepared"
        return request

    def last_types(self, count: int) -> list[str]:
        return [each.event.envelope.event_type for each in self.memory.verdicts()][-count:]


def test_a_request_that_is_delivered_again_does_no_harm() -> None:
    rig = Rig()
    acceptor = rig.acceptor()
    offered = rig.offer()
    for _ in range(2):
        acceptor(offered, rig.receipts.append)
    prepared = rig.memory.migrations()[-1]
    for _ in range(2):
        acceptor(prepared, rig.receipts.append)
    acceptor(offered, rig.receipts.append)
    assert len(rig.arrived) == 1
    assert rig.receipts == [Receipt(None, None)] * 5
    assert (rig.memory.rejections(), rig.reported) == ([], [])


@given(order=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=8))
def test_whichever_process_gets_which_request_how_often_the_session_arrives_once(order: list[tuple[int, int]]) -> None:
    rig = Rig()
    acceptors = [rig.acceptor(), rig.acceptor()]
    offered = rig.offer()
    acceptors[0](offered, rig.receipts.append)
    requests = [offered, rig.memory.migrations()[-1]]
    for which, request in [*order, (0, 1)]:
        acceptors[which](requests[request], rig.receipts.append)
    assert len(rig.arrived) == 1
    assert rig.arrived[0].update_state({"n": 2}) == 2
    assert (rig.memory.rejections(), rig.reported) == ([], [])


def test_a_request_of_a_migration_that_is_over_is_dropped() -> None:
    rig = Rig()
    acceptor = rig.acceptor()
    prepared = rig.prepare(acceptor)
    rig.memory.advance(31)
    sent = len(rig.memory.events())
    acceptor(prepared, rig.receipts.append)
    rig.session.close()
    rig.memory.advance(3_600 * 24 * 90)  # the session is archived
    acceptor(prepared, rig.receipts.append)
    assert (rig.arrived, rig.reported, [receipt.error for receipt in rig.receipts]) == ([], [], [None, None, None])
    assert len(rig.memory.events()) == sent + 1


def test_an_epoch_that_rises_before_the_session_is_loaded_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    target = rig.target()
    acceptor = MigrationAcceptor(
        target.core.open_attached,
        hand_over_in_place(rig.arrived.append, rig.reported.append),
        1,
        rig.reported.append,
        in_place=True,
    )
    rises, read = iter([rig.session]), SessionCore.sync

    def read_then_rise(core: SessionCore, departures: int) -> SessionView:
        view = read(core, departures)
        for owner in rises:
            owner.pause()
            owner.resume()
        return view

    monkeypatch.setattr(SessionCore, "sync", read_then_rise)
    acceptor(rig.offer(), rig.receipts.append)
    assert [each.reason for each in rig.memory.rejections()] == ["stale_epoch"]
    acceptor(rig.memory.migrations()[-1], rig.receipts.append)
    assert (len(rig.arrived), rig.arrived[0].epoch, rig.reported) == (1, 3, [])


def test_a_state_that_differs_is_read_again_and_the_third_time_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    acceptor = rig.acceptor()
    prepared = rig.prepare(acceptor)
    monkeypatch.setattr("sessionary.producers.session.migration.content_hash", lambda text: "0" * 64)
    acceptor(prepared, rig.receipts.append)
    assert [each.reason for each in rig.memory.rejections()] == ["migration_moved"] * 3
    view = rig.session.sync()
    assert view.migration is not None
    assert (view.migration.reason_code, view.state, rig.arrived) == ("state_differs", "Active", [])


def test_what_the_function_raises_is_reported_and_the_thread_goes_on() -> None:
    rig = Rig()

    def fail(session: Session) -> None:
        raise ValueError(session.session_id)

    acceptor = rig.acceptor(fail)
    acceptor(rig.prepare(acceptor), rig.receipts.append)
    assert [f"{error}" for error in rig.reported] == [rig.session.session_id]
    assert acceptor._busy == 0


def test_a_control_api_that_does_not_answer_is_reported_and_the_request_comes_again() -> None:
    rig = Rig()
    acceptor = rig.acceptor()
    prepared = rig.prepare(acceptor)
    rig.memory.silence_control(silent=True)
    acceptor(prepared, rig.receipts.append)
    assert rig.receipts[-1].error is not None
    assert [type(error) for error in rig.reported] == [Unavailable]
    rig.memory.silence_control(silent=False)
    acceptor(prepared, rig.receipts.append)
    assert len(rig.arrived) == 1


def test_a_request_that_cannot_be_answered_is_given_up_long_after_its_migration() -> None:
    rig = Rig()
    acceptor = rig.acceptor()
    prepared = rig.prepare(acceptor)
    rig.memory.silence_control(silent=True)
    acceptor(prepared._replace(expires_at=time.time_ns() // 1_000 - 601_000_000), rig.receipts.append)
    assert ([type(error) for error in rig.reported], rig.receipts[-1].error) == ([Unavailable], None)


def test_without_a_thread_the_request_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rig = Rig()
    acceptor = rig.acceptor(in_place=False)
    offered = rig.offer()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", reject)
        acceptor(offered, rig.receipts.append)
    assert [receipt.error for receipt in rig.receipts] == ["can't start new thread"]
    assert [f"{error}" for error in rig.reported] == ["can't start new thread"]
    acceptor(offered, rig.receipts.append)
    wait_until(lambda: len(rig.receipts) == 2, 60, "the session to be loaded")
    assert rig.memory.migrations()[-1].step == "prepared"


class Gated:
    """An acceptor whose offers wait before they read their session; `begun` has all that began."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch, concurrency: int) -> None:
        self.begun: list[str] = []
        self.going_on = threading.Event()
        self.acceptor = rig.acceptor(concurrency=concurrency, in_place=False)
        read_session = self.acceptor._read_session

        def read_late(session: SessionCore, request: MigrationRequest) -> object:
            self.begun.append(request.migration_id)
            assert request.step == "prepared" or self.going_on.wait(60)
            return read_session(session, request)

        monkeypatch.setattr(self.acceptor, "_read_session", read_late)

    def wait_begun(self, count: int) -> None:
        wait_until(lambda: len(self.begun) == count, 60, f"{count} requests to begin")

    def wait_free(self) -> None:
        wait_until(lambda: self.acceptor._busy == 0, 60, "all threads to be free")


def offer_others(rig: Rig, count: int) -> list[MigrationRequest]:
    return [rig.offer(rig.source.session(user_id="u", state={}), f"offered-{n}") for n in range(count)]


def test_a_session_that_is_held_finds_a_thread_while_others_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    gated = Gated(rig, monkeypatch, concurrency=4)
    prepared = rig.prepare(rig.acceptor())
    for offered in offer_others(rig, 3):  # two threads are free at the third one, and not for offers
        gated.acceptor(offered, rig.receipts.append)
    gated.acceptor(prepared, rig.receipts.append)
    wait_until(lambda: rig.arrived, 60, "the session that is held")
    assert sorted(gated.begun) == ["m1", "offered-0", "offered-1"]
    gated.going_on.set()
    gated.wait_free()
    gated.acceptor.close(60)
    assert gated.begun[-1] == "offered-2"
    assert ([receipt.error for receipt in rig.receipts], rig.reported) == ([None] * 5, [])


def test_held_sessions_come_first_and_offers_in_the_order_of_their_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    gated = Gated(rig, monkeypatch, concurrency=1)
    prepared = rig.prepare(rig.acceptor())
    reported: list[str] = []
    for request in [*offer_others(rig, 6), prepared]:
        gated.acceptor(request, lambda receipt, name=request.migration_id: reported.append(name))  # type: ignore[misc]
        gated.wait_begun(1)
    gated.going_on.set()
    gated.wait_free()
    order = ["offered-0", "m1", *(f"offered-{n}" for n in range(1, 6))]
    assert (gated.begun, reported) == (order, order)
    assert (len(rig.arrived), rig.reported) == (1, [])


def test_a_request_that_waits_is_answered_once_however_often_it_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    gated = Gated(rig, monkeypatch, concurrency=1)
    first, second = offer_others(rig, 2)
    for request in (first, second, second):
        gated.acceptor(request, rig.receipts.append)
    gated.going_on.set()
    gated.wait_free()
    assert (gated.begun, rig.receipts) == (["offered-0", "offered-1"], [Receipt(None, None)] * 3)


def test_what_waits_has_a_limit_which_offers_do_not_take_from_held_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionary.producers.migrations._WAITING_MAX", 2)
    rig = Rig()
    gated = Gated(rig, monkeypatch, concurrency=1)
    prepared = rig.prepare(rig.acceptor())
    *offers, one_more = offer_others(rig, 4)
    for offered in offers:
        gated.acceptor(offered, rig.receipts.append)
        gated.wait_begun(1)
    with pytest.raises(QueueFull, match="2 wait"):
        gated.acceptor(one_more, rig.receipts.append)
    gated.acceptor(prepared, rig.receipts.append)
    gated.going_on.set()
    gated.wait_free()
    assert (gated.begun[1], len(gated.begun), len(rig.receipts)) == ("m1", 4, 5)


def test_of_a_client_that_stops_what_waits_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    gated = Gated(rig, monkeypatch, concurrency=1)
    backlog = RequestBacklog()
    backlog.begin_assignment([0])
    for offset, request in enumerate(offer_others(rig, 3)):
        backlog.add_request(0, offset, request)
    for one in backlog.waiting:
        one.try_answer(gated.acceptor)
    gated.wait_begun(1)
    gated.acceptor.stop()
    gated.going_on.set()
    gated.acceptor.close(60)
    wait_until(lambda: backlog.waiting[0].delivered, 60, "the answer to the one at work")
    assert gated.begun == ["offered-0"]
    assert backlog.take_answered() == {0: 1}
    assert [one.offset for one in backlog.waiting] == [1, 2]


def test_a_verdict_that_was_not_reported_is_found_when_the_request_comes_again() -> None:
    rig = Rig()
    acceptor = rig.acceptor()
    prepared = rig.prepare(acceptor)
    silent_from = len(rig.memory.events())
    fetch = rig.memory.fetch_session

    def fetch_until_accepted(*args: object) -> object:
        if len(rig.memory.events()) > silent_from:
            raise Unavailable("silent", 1.0)
        return fetch(*args)  # type: ignore[arg-type]

    rig.memory.fetch_session = fetch_until_accepted  # type: ignore[method-assign, assignment]
    acceptor(prepared, rig.receipts.append)
    assert (rig.arrived, rig.receipts[-1].error is None) == ([], False)
    rig.memory.fetch_session = fetch  # type: ignore[method-assign]
    acceptor(prepared, rig.receipts.append)
    (arrived,) = rig.arrived
    before = len(rig.memory.heartbeats())
    rig.memory.advance(60)
    assert len(rig.memory.heartbeats()) > before
    arrived.activity("on")
    assert rig.memory.rejections() == []
    assert rig.last_types(2) == ["session_migration_accepted", "session_activity"]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What lets the program's functions return; set at the end."""
    event = threading.Event()
    yield event
    event.set()


def test_no_more_sessions_are_taken_at_once_than_there_are_threads(gate: threading.Event) -> None:
    rig = Rig()
    acceptor = rig.acceptor(lambda session: gate.wait(), concurrency=1, in_place=False)
    acceptor(rig.offer(), rig.receipts.append)
    wait_until(lambda: acceptor._busy == 0, 60, "the session to be loaded")
    acceptor(rig.memory.migrations()[-1], rig.receipts.append)
    wait_until(lambda: len(rig.receipts) == 2, 60, "the session to arrive")
    acceptor(rig.offer(rig.source.session(user_id="u"), "m2"), rig.receipts.append)
    assert [(request.migration_id, request.step) for request in rig.memory.migrations()][-1] == ("m2", "offered")
    gate.set()
    wait_until(lambda: len(rig.receipts) == 3, 60, "the next one to be loaded once the function has returned")
    assert rig.memory.migrations()[-1].step == "prepared"


def test_closing_does_not_wait_for_the_programs_function(gate: threading.Event) -> None:
    rig = Rig()
    acceptor = rig.acceptor(lambda session: gate.wait(), concurrency=1, in_place=False)
    acceptor(rig.prepare(rig.acceptor()), rig.receipts.append)
    wait_until(lambda: len(rig.receipts) == 2, 60, "the session to arrive")
    acceptor.close(60)
    assert acceptor._busy == 1
    with pytest.raises(QueueFull):
        acceptor(rig.offer(rig.source.session(user_id="u"), "m2"), rig.receipts.append)


def test_a_stopped_acceptor_takes_nothing() -> None:
    rig = Rig()
    acceptor = rig.acceptor()
    acceptor.stop()
    with pytest.raises(QueueFull):
        acceptor(rig.offer(), rig.receipts.append)
