"""A thread waits for the processor while another one, or a poll, changes the same session."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from sessionary.producers import (
    ProducerConflict,
    ProducerError,
    QueueFull,
    Session,
    SessionClient,
    SessionFenced,
    TaskStopped,
)
from sessionary.producers.context.call_counts import SessionCalls
from sessionary.producers.delivery.emitter import ProducerSequence
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt
from sessionary.producers.session.polled import PolledSession
from sessionary.producers.session.view import LocalView
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.types import DataClass, Rejection
from tests.core.producers.judged_memory import HeldReceipts, JudgedMemory, LateAnswers, copy_id
from tests.support.waiting import PATIENCE_S, wait_until

T = TypeVar("T")


@contextmanager
def late_answer(kafka: LateAnswers, call: Callable[[], T]) -> Iterator[Future[T]]:
    """Call on another thread; the block runs while the first answer to it is on its way."""
    kafka.hold_answer()
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call)
        try:
            assert kafka.asked.wait(PATIENCE_S)
            yield called
        finally:
            kafka.answer.set()


def wait_briefly(client: SessionClient) -> None:
    """Let verbs give up soon: the wrong code would wait for the whole time."""
    client.core.services = client.core.services._replace(verdict_timeout_s=1.0)


# Answers that are older than the change of another thread


def test_an_answer_to_sync_from_before_an_update_does_not_take_the_update_back() -> None:
    kafka = LateAnswers()
    session = kafka.client()[0].session(user_id="u", state={"n": 1})
    with late_answer(kafka, session.sync) as synced:
        session.update_state({"n": 2}, wait=False)
    assert synced.result(PATIENCE_S).version == 2
    assert (session.version, session.state) == (2, {"n": 2})
    session.update_state({"n": 3})
    assert kafka.outcomes[-1] == "applied"


def test_an_answer_to_sync_from_before_a_resume_does_not_lead_back_to_the_pause() -> None:
    kafka = LateAnswers()
    session = kafka.client()[0].session(user_id="u")
    session.pause()
    with late_answer(kafka, session.sync):
        session.resume()
    assert (session.local_state, session.epoch) == ("Active", 2)
    session.activity("work")
    assert kafka.outcomes[-1] == "applied"


def test_an_answer_to_an_earlier_sync_does_not_take_back_what_a_later_one_read() -> None:
    kafka = LateAnswers()
    session = kafka.client()[0].session(user_id="u", state={"n": 1})
    other = kafka.client(agent_id="agent-2")[0].attach(session.session_id)
    with late_answer(kafka, session.sync) as synced:
        other.update_state({"n": 2})
        assert session.sync().version == 2
    assert synced.result(PATIENCE_S).version == 1  # it is not asked again: threads that sync do not hinder each other
    assert (session.version, session.state) == (2, {"n": 2})


def test_an_answer_to_sync_from_before_a_take_over_lets_no_verb_go_on() -> None:
    kafka = LateAnswers()
    client = kafka.polling_client(on_fenced=lambda fenced: None)
    session = client.session(user_id="u")
    other, _ = kafka.client(agent_id="agent-2")
    with late_answer(kafka, session.sync) as synced:
        other.attach(session.session_id, take_over=True)
        client.core.watch.poll_now()
    with pytest.raises(SessionFenced):
        synced.result(PATIENCE_S)
    with pytest.raises(SessionFenced):
        session.activity("work")


def test_a_record_from_before_a_take_over_that_a_poll_has_found_is_not_adopted() -> None:
    kafka = JudgedMemory()
    client = kafka.polling_client(on_fenced=lambda fenced: None)
    session = client.session(user_id="u")
    before = kafka.fetch_session(session.session_id, None, 0.0)
    kafka.client(agent_id="agent-2")[0].attach(session.session_id, take_over=True)
    client.core.watch.poll_now()
    with pytest.raises(SessionFenced), session.core.lock_then_notify():
        session.core.adopt_view(before)
    with pytest.raises(SessionFenced):
        session.activity("work")


def test_a_verdict_on_a_turn_from_before_an_update_does_not_take_the_update_back() -> None:
    kafka = LateAnswers()
    session = kafka.client()[0].session(user_id="u", state={"n": 1})
    turn = session.turn()
    with late_answer(kafka, turn.__enter__):
        session.update_state({"n": 2}, wait=False)
    assert turn.number == 1
    assert (session.version, session.state) == (2, {"n": 2})
    turn.__exit__(None, None, None)
    session.update_state({"n": 3})
    assert kafka.outcomes[-1] == "applied"


class _WatchedTurns(JudgedMemory):
    """Notes whether a turn could begin in this process while an event on phases is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: SessionCalls | None = None
        self.may_begin: list[bool] = []

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        if record.event_type == "session_phase_changed" and self.calls is not None:
            self.may_begin.append(self.calls.open_turn(record.session_id))
        super().send(record, on_receipt)


def test_a_turn_of_another_thread_does_not_begin_before_the_end_of_this_one_is_sent() -> None:
    kafka = _WatchedTurns()
    session = kafka.client()[0].session(user_id="u")
    kafka.calls = session.core.services.calls
    with session.turn():
        pass
    with session.turn():
        pass
    assert kafka.may_begin == [False] * 4


_STOPPED: Any = vars(LocalView)["stopped"]


class _StoppedMeanwhile(LocalView):
    """A view that another thread stops once it was read that it is not stopped."""

    __slots__ = ()

    @property
    def stopped(self) -> Callable[[], ProducerError] | None:
        """Why verbs raise."""
        stopped: Callable[[], ProducerError] | None = _STOPPED.__get__(self)
        if stopped is None:
            self.stop(lambda: TaskStopped("t-1", "cancelled"))
        return stopped

    @stopped.setter
    def stopped(self, value: Callable[[], ProducerError] | None) -> None:
        _STOPPED.__set__(self, value)


def test_verbs_of_a_task_that_is_stopped_while_a_record_is_adopted_raise() -> None:
    session = JudgedMemory().client()[0].session(user_id="u")
    record = session.sync()
    session.core.view.__class__ = _StoppedMeanwhile
    with session.core.lock_then_notify():
        session.core.adopt_view(record)
    with pytest.raises(TaskStopped):
        session.activity("work")


def test_a_verdict_from_before_an_agents_registration_does_not_forget_the_agent() -> None:
    kafka = LateAnswers()
    session = kafka.client()[0].session(user_id="u", state={"n": 1})
    transaction = session.transaction()
    with late_answer(kafka, transaction.__enter__):
        session.agents.get("a-1", "writer")
    assert session.core.view.agent_count == 1


def test_an_answer_to_sync_from_before_an_agents_registration_does_not_forget_the_agent() -> None:
    kafka = LateAnswers()
    session = kafka.client()[0].session(user_id="u", state={"n": 1})
    with late_answer(kafka, session.sync):
        session.agents.get("a-1", "writer")
    assert session.core.view.agent_count == 1


# Verdicts that another thread adopts first


class _WithoutOffsets(LateAnswers):
    """A broker that reports no offset of an event that makes a session Active again."""

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        def receive(receipt: Receipt) -> None:
            assert on_receipt is not None
            on_receipt(receipt._replace(offset=None))

        super().send(record, receive if record.event_type == "session_resumed" else on_receipt)


def test_a_resume_without_an_offset_is_granted_although_another_thread_adopts_its_epoch_first() -> None:
    kafka = _WithoutOffsets()
    client, _ = kafka.client()
    wait_briefly(client)
    session = client.session(user_id="u")
    session.pause()
    with late_answer(kafka, session.resume) as resumed:
        session.sync()
        assert session.epoch == 2
    resumed.result(PATIENCE_S)
    assert (session.local_state, session.epoch) == ("Active", 2)


class _KeptBeats(LateAnswers):
    """Keeps the epochs of heartbeats."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []

    def send_heartbeat(self, record: OutRecord) -> None:
        event = Decoder().decode_event(record.value)
        assert isinstance(event, Event)
        self.epochs.append(event.envelope.epoch)


def test_heartbeats_have_the_epoch_of_a_verdict_that_another_thread_adopts_first() -> None:
    kafka = _KeptBeats()
    session = kafka.client()[0].session(user_id="u")
    session.pause()
    with late_answer(kafka, session.resume):
        assert session.core.beats.send_heartbeat()
        session.sync()
        assert session.core.beats.send_heartbeat()
    assert kafka.epochs == [2, 2]


# Numbers and producer ids


class _FullQueue(JudgedMemory):
    """A queue under policy `block` that has no room for an activity, until the block is over."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.is_over = threading.Event(), threading.Event()

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        if record.event_type == "session_activity":
            self.waits.set()
            assert self.is_over.wait(PATIENCE_S)
            raise QueueFull("no room")
        super().send(record, on_receipt)


def test_sync_does_not_wait_for_an_event_that_found_no_room() -> None:
    kafka = _FullQueue()
    client, _ = kafka.client()
    wait_briefly(client)
    session = client.session(user_id="u")
    waiting = session.core.emitter._sequence._changed
    with ThreadPoolExecutor(2) as pool:
        refused = pool.submit(session.activity, "too much")
        assert kafka.waits.wait(PATIENCE_S)
        synced = pool.submit(session.sync)
        wait_until(lambda: bool(waiting._waiters), 10, "the call to wait")  # type: ignore[attr-defined]
        kafka.is_over.set()
        assert isinstance(refused.exception(PATIENCE_S), QueueFull)
        assert synced.result(PATIENCE_S).state == "Active"


def _copied(kafka: JudgedMemory, original: Session, client: SessionClient) -> Session:
    """Return the session in a copy of its process; what the original had sent is sent."""
    copy = client.attach(original.session_id)
    sequence = copy.core.emitter._sequence
    sequence.last = sequence._settled = original.core.emitter.last_seq
    return copy


def test_a_new_producer_id_that_one_object_of_a_session_takes_does_not_fence_the_other_one_off() -> None:
    kafka, errors = JudgedMemory(), list[Exception]()
    client, copies = kafka.polling_client(on_error=errors.append), kafka.client()[0]
    copy_id(copies, client)
    first = client.session(user_id="u")
    holder = client.attach(first.session_id, take_over=True)
    copy = _copied(kafka, first, copies)
    copy.activity("work of the copy")
    client.core.watch.poll_now()
    assert [type(error) for error in errors] == [ProducerConflict]
    assert holder.sync().state == "Active"
    holder.activity("work")
    assert kafka.outcomes[-1] == "applied"


def test_a_new_producer_id_that_a_poll_takes_during_a_take_over_does_not_fence_the_session_off() -> None:
    kafka, errors = HeldReceipts(), list[Exception]()
    original, client = kafka.client()[0], kafka.polling_client(on_error=errors.append)
    copy_id(client, original)
    session = original.session(user_id="u")
    copy = _copied(kafka, session, client)
    kafka.hold = True
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(client.attach, session.session_id, take_over=True)
        wait_until(lambda: kafka.outcomes[-1] == "applied" and bool(kafka._held), 10, "the take-over")
        kafka.hold = False
        for _ in range(3):
            session.activity("work of the original")
        client.core.watch.poll_now()
        assert ProducerConflict in {type(error) for error in errors}
        kafka.deliver()
        taken = taking.result(PATIENCE_S)
    assert taken.sync().state == "Active"
    taken.activity("work")
    assert kafka.outcomes[-1] == "applied"
    assert copy.core.emitter.producer_id != original.producer_id


def test_data_classes_that_two_objects_of_a_session_add_at_once_are_all_added() -> None:
    sequence = ProducerSequence("p")

    def add_meanwhile() -> Iterator[DataClass]:
        sequence.add_data_classes(["medical"])
        yield "financial"

    added: Any = add_meanwhile()
    sequence.add_data_classes(added)
    assert set(sequence.data_classes) == {"medical", "financial"}


# Polls, and snapshots


def test_a_session_that_begins_to_beat_while_a_poll_is_prepared_shortens_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = JudgedMemory().polling_client()
    watch, session = client.core.watch, client.session(user_id="u")

    def begin_another(_handle: PolledSession) -> float | None:
        watch.note_beats(1.0)  # another thread starts a session that beats each second
        return None

    monkeypatch.setattr(PolledSession, "beat_interval_s", begin_another)
    watch.poll_now()
    assert watch._schedule.pause_s(1.0) == pytest.approx(0.8)
    assert session.local_state == "Active"


_Heard = tuple[Sequence[Rejection], str | None]


class _Interrupted(deque[_Heard]):
    """What a poll has reported, to which another one adds more once it is read."""

    def __init__(self, heard: list[_Heard], later: _Heard) -> None:
        super().__init__(heard)
        self._later: list[_Heard] = [later]

    def clear(self) -> None:
        super().extend(self._later)
        super().clear()

    def popleft(self) -> _Heard:
        found = super().popleft()
        super().extend(self._later)
        self._later.clear()
        return found


def test_a_rejection_that_a_poll_hears_while_a_snapshot_is_taken_again_is_heard_then() -> None:
    session = JudgedMemory().client()[0].session(user_id="u")
    session.snapshot()
    chain = session.core.view.chain
    assert chain is not None
    reported = [Rejection(number, "broken_chain", f"e-{number}") for number in (1, 2)]
    first, later = (([each], None) for each in reported)
    chain._heard = _Interrupted([first], later)
    with session.core.lock:
        chain.take_again()
    assert list(chain._heard) == [later]
