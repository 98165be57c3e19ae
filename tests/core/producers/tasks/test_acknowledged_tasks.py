"""A task's id is returned once the broker has the request for it, whatever becomes of the work."""

import asyncio
import threading
import uuid

import pytest

from sessionary.producers import AsyncSessionClient, DeliveryFailed, ProducerSettings, Session, Unavailable
from sessionary.producers.errors import ProducerError
from sessionary.producers.ports import Receipt
from sessionary.producers.testing import memory_ports
from sessionary.schemas.events import RunQueued
from tests.core.producers.slow_kafka import SlowKafka, client_of
from tests.support.waiting import wait_until

LONG_S = 60.0


def wait_for_request(kafka: SlowKafka) -> str:
    """Wait until the broker holds the receipt of a request for a task; return the task's id."""
    wait_until(lambda: bool(kafka.held), LONG_S, "the request in the log", pause_s=0.001)
    (task_id,) = (event.envelope.run_id for event in kafka.events() if isinstance(event.payload, RunQueued))
    assert task_id is not None
    return task_id


class Asking(threading.Thread):
    """Asks for a task, and notes what comes of it."""

    def __init__(self, session: Session) -> None:
        super().__init__(daemon=True)
        self._session = session
        self.task_ids: list[str] = []
        self.errors: list[ProducerError] = []

    def run(self) -> None:
        try:
            self.task_ids.append(self._session.start_task("train", {"epochs": 10}, timeout_s=LONG_S))
        except ProducerError as error:
            self.errors.append(error)


def test_the_id_of_a_task_is_returned_after_the_acknowledgement_of_its_request() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own").session(user_id="u")
    kafka.held = []
    asking = Asking(session)
    asking.start()
    task_id = wait_for_request(kafka)
    session.activity("beside it")  # no other verb is held up
    asking.join(0.1)
    assert asking.is_alive()
    assert asking.task_ids == []
    kafka.acknowledge(1)
    asking.join(LONG_S)
    assert asking.task_ids == [task_id]
    assert uuid.UUID(task_id).variant == uuid.RFC_4122
    kafka.acknowledge(1)
    # Its id did not wait for a worker: none has begun it.
    assert client_of(kafka, "other").check_task_status(task_id)["status"] == "started"


def test_a_request_that_is_not_acknowledged_in_time_names_its_task_and_is_sent_all_the_same() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own").session(user_id="u")
    kafka.held = []
    with pytest.raises(Unavailable, match="is not delivered yet") as raised:
        session.start_task("train", timeout_s=0.01)
    assert wait_for_request(kafka) in str(raised.value)


def test_a_request_that_is_lost_returns_no_id() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own").session(user_id="u")
    kafka.held = []
    asking = Asking(session)
    asking.start()
    wait_for_request(kafka)
    on_receipt, _ = kafka.held.pop()
    on_receipt(Receipt(None, None, "dropped"))
    asking.join(LONG_S)
    assert asking.task_ids == []
    (error,) = asking.errors
    assert isinstance(error, DeliveryFailed)
    assert "dropped" in str(error)


def test_asyncio_awaits_the_acknowledgement_without_holding_up_the_loop() -> None:
    kafka = SlowKafka()

    async def ask() -> tuple[bool, bool]:
        client = AsyncSessionClient(
            tenant_id="acme", service_id="shop", agent_id="own", settings=ProducerSettings(), ports=memory_ports(kafka)
        )
        async with client, client.session(user_id="u") as session:
            kafka.held = []
            asking = asyncio.ensure_future(session.start_task("train", timeout_s=LONG_S))
            task_id = await asyncio.to_thread(wait_for_request, kafka)
            waited = not asking.done()
            kafka.acknowledge(len(kafka.held))
            same = await asking == task_id
            kafka.held = None
            return waited, same

    assert asyncio.run(ask()) == (True, True)
