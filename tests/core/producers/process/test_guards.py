"""Threads and callbacks of the client outlive what callbacks raise."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionary.producers import SessionClient
from sessionary.producers.delivery.spool import spool as spool_module
from sessionary.producers.delivery.spool.segment import Frame
from sessionary.producers.delivery.spool.spool import AGE_LIMIT_MS, Spool
from sessionary.producers.errors import SessionFenced
from sessionary.producers.process.guards import guard_callback, join_thread, log_error
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.waiting import wait_until


def client_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("sessionary-")}


@pytest.fixture
def dead_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    died: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: died.append(f"{args.thread.name}: {args.exc_value!r}"))
    yield died
    assert died == []


@pytest.mark.parametrize("policy", ["spool", "drop"])
@pytest.mark.parametrize("raised", [RuntimeError("listener"), SystemExit(3), asyncio.CancelledError()])
def test_delivery_outlives_an_on_error_that_raises(
    policy: str, raised: BaseException, closed_address: str, tmp_path: Path, dead_threads: list[str]
) -> None:
    called: list[Exception] = []

    def raise_again(error: Exception) -> None:
        called.append(error)
        raise raised

    of = new_settings(closed_address, tmp_path, delivery_policy=policy)
    before = client_threads()
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=of, on_error=raise_again)
    with client:
        client.session(user_id="u")
        wait_until(lambda: bool(called), 60, "a report that the broker is away")
        mine = client_threads() - before
        assert {"sessionary-delivery", "sessionary-heartbeat"} <= {thread.name for thread in mine}
        time.sleep(0.3)  # longer than a round of the delivery thread
        assert all(thread.is_alive() for thread in mine)
    # The client is closed before its threads have ended, and what they report is logged.
    wait_until(lambda: not any(thread.is_alive() for thread in mine), 60, "the end of its threads")


def test_a_line_about_a_session_has_it_as_a_field(caplog: pytest.LogCaptureFixture) -> None:
    def reject(error: Exception) -> None:
        raise RuntimeError("listener")

    with caplog.at_level(logging.WARNING, "sessionary.producers"):
        log_error(SessionFenced("s1", "p1", 2))
        guard_callback(reject)(SessionFenced("s2", "p1", 2))
        log_error(ValueError("no session"))
    fields = [{name: line.__dict__.get(name) for name in ("session_id", "error_class")} for line in caplog.records]
    assert fields == [
        {"session_id": "s1", "error_class": "SessionFenced"},
        {"session_id": "s2", "error_class": "SessionFenced"},
        {"session_id": None, "error_class": "ValueError"},
    ]


def test_what_a_callback_raises_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    def reject(error: Exception) -> None:
        raise RuntimeError("listener")

    with caplog.at_level(logging.ERROR, "sessionary.producers"):
        guard_callback(reject)(ValueError("the report"))
    assert "the report" in caplog.text
    assert "listener" in caplog.text


def test_an_interrupt_of_the_user_passes_a_callback() -> None:
    def interrupt(error: Exception) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard_callback(interrupt)(ValueError())
    survivor = threading.Thread(target=guard_callback(interrupt), args=(ValueError(),))
    survivor.start()
    assert join_thread(survivor, 60)


def test_a_thread_does_not_wait_for_itself() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(join_thread(threading.current_thread(), 60)))
    thread.start()
    assert join_thread(thread, 60)
    assert found == [True]
    assert join_thread(None, 60)


def test_an_expired_event_that_cannot_be_kept_aside_does_not_end_the_sender(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead_threads: list[str]
) -> None:
    of = new_settings(closed_address, tmp_path)
    old = Spool(of.spool_folder, "old", 1 << 20)
    old.append_frame(Frame(time.time_ns() // 1_000_000 - AGE_LIMIT_MS - 1_000, b"k", None, b"old"), None)
    old.close()

    def reject(spool: Spool, frame: Frame) -> Path:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Spool, "store_aside", reject)
    monkeypatch.setattr(spool_module, "OLD_WAIT_S", 0.0)
    errors: list[Exception] = []
    with new_client(of, errors) as client:
        # It is reported a moment after it was counted.
        wait_until(lambda: any("too old" in str(error) for error in errors), 60, "the old event")
        assert (client.counters.expired, client.flush(0)) == (1, 0)
    assert any("too old" in str(error) and "Read-only file system" in str(error) for error in errors)


def test_a_delivery_thread_outlives_an_error_of_its_own_round(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead_threads: list[str]
) -> None:
    errors: list[Exception] = []
    with new_client(new_settings(closed_address, tmp_path, delivery_policy="drop"), errors) as client:
        kafka = client.core.ports.transport._kafka  # type: ignore[attr-defined]
        before = kafka._on_poll

        def fail_once() -> None:
            kafka._on_poll = before
            raise OSError("of the journal")

        kafka._on_poll = fail_once
        wait_until(lambda: any("of the journal" in str(error) for error in errors), 60, "the report")
        assert kafka._thread.is_alive()


def test_a_client_may_be_closed_by_its_own_callback(closed_address: str, tmp_path: Path) -> None:
    made, closed = threading.Event(), threading.Event()
    clients: list[SessionClient] = []

    def close_client(error: Exception) -> None:
        assert made.wait(60)
        if not closed.is_set():
            clients[0].close(0.1)
            closed.set()

    of = new_settings(closed_address, tmp_path)
    clients.append(SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=of, on_error=close_client))
    clients[0].create(user_id="u")
    made.set()
    assert closed.wait(60)
