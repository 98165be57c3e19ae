"""What the watch of a client leaves: no thread without sessions, no events of lost sessions."""

import gc
import threading

import pytest

from sessionary.producers import AuthenticationFailed, SessionFenced, Unavailable
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt
from tests.core.producers.judged_memory import JudgedMemory
from tests.support.waiting import wait_until


def watch_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "sessionary-watch"}


@pytest.mark.parametrize("error", [None, AuthenticationFailed("the token is not known")])
def test_a_client_without_sessions_has_no_thread_once_its_token_is_checked(error: Exception | None) -> None:
    others, kafka = watch_threads(), JudgedMemory()
    kafka.poll_error = error
    client = kafka.polling_client(poll_interval_s=0.01, on_error=lambda error: None)
    wait_until(lambda: watch_threads() <= others, 60, "the end of the thread")
    assert len(kafka.polled) == 1
    session = client.session(user_id="u")
    wait_until(lambda: len(kafka.polled) >= 3, 60, "polls about the session")
    kafka.poll_error = None
    session.close()
    wait_until(lambda: watch_threads() <= others, 60, "the end of the thread after the session")
    client.close()


def test_a_dropped_client_of_a_tenant_leaves_no_thread() -> None:
    others, kafka = watch_threads(), JudgedMemory()
    client = kafka.polling_client(poll_interval_s=0.01)
    for n in range(3):
        client.for_tenant(f"tenant-{n}")
    wait_until(lambda: watch_threads() <= others, 60, "the end of the threads")
    client.close()


def test_closing_a_client_ends_the_watch_of_a_dropped_client_of_a_tenant() -> None:
    others, kafka = watch_threads(), JudgedMemory()
    kafka.poll_error = Unavailable("the control API is away", 1.0)
    client = kafka.polling_client(poll_interval_s=0.01, on_error=lambda error: None)
    client.for_tenant("globex")
    gc.collect()
    wait_until(lambda: len(kafka.polled) >= 4, 60, "polls without an answer")
    client.close()
    wait_until(lambda: watch_threads() <= others, 60, "the end of the threads")


def test_a_lost_session_keeps_no_events() -> None:
    kafka = JudgedMemory()
    client = kafka.polling_client()
    session = client.session(user_id="u")
    sent = session.core.view.sent_events
    assert sent is not None
    kafka.client()[0].attach(session.session_id, take_over=True)
    with pytest.raises(SessionFenced):
        session.sync()
    assert session.lost
    client.core.watch.poll_now()
    session.core.view.fenced_by = None  # as in a session that was lost for another reason
    session.activity("goes on")
    assert len(sent) == 0


def test_a_session_whose_events_were_all_lost_is_forgotten_once_it_ended() -> None:
    class FullMemory(JudgedMemory):
        def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
            assert on_receipt is not None
            on_receipt(Receipt(None, None, "dropped"))

    kafka = FullMemory()
    client = kafka.polling_client()
    with client.session(user_id="u"):
        client.core.watch.poll_now()
        assert len(kafka.polled) == 2
    client.core.watch.poll_now()
    assert (len(kafka.polled), client.core.watch._watched) == (2, [])
    client.close()


def test_a_closed_client_asks_and_tells_no_more() -> None:
    kafka, reported = JudgedMemory(), list[Exception]()
    client = kafka.polling_client(poll_interval_s=0.01, on_error=reported.append)
    session = client.session(user_id="u")
    thread = client.core.watch._thread
    assert thread is not None
    assert not session.lost
    client.close()
    wait_until(lambda: not thread.is_alive(), 60, "the thread to end")
    assert reported == []
