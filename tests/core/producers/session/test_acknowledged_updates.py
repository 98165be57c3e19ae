"""An update of the content returns once the broker has it, or says that it has not."""

import asyncio
import threading

import pytest

from sessionary.producers import AsyncSessionClient, ProducerSettings, SessionClient, Unavailable
from sessionary.producers.ports import Receipt
from sessionary.producers.testing import memory_ports
from sessionary.schemas.events import StateUpdated
from tests.core.producers.slow_kafka import SlowKafka, client_of
from tests.support.waiting import wait_until

SOON = ProducerSettings.from_env({}, verdict_timeout_s=0.05)


def updates_of(kafka: SlowKafka) -> list[int]:
    """Return the versions that were sent, in the order of the log."""
    return [event.payload.new_version for event in kafka.events() if isinstance(event.payload, StateUpdated)]


def wait_for_update(kafka: SlowKafka, before: int) -> None:
    """Wait until the receipts of an update are held; `before`: the number of records before it.

    An update may be several events. Each is in the log a moment before its receipt is held.
    """

    def is_held() -> bool:
        return bool(updates_of(kafka)) and len(kafka.held or ()) == len(kafka.records()) - before

    wait_until(is_held, 60, "the update in the log", pause_s=0.001)


def test_an_update_returns_after_its_acknowledgement_and_holds_up_no_other_verb() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own").session(user_id="u", state={"n": 1})
    kafka.held, before = [], len(kafka.records())
    versions: list[int] = []
    updating = threading.Thread(target=lambda: versions.append(session.update_state({"n": 2})))
    updating.start()
    wait_for_update(kafka, before)
    session.activity("beside it")
    updating.join(0.1)
    assert updating.is_alive()
    kafka.acknowledge(len(kafka.held) - 1)  # all but the activity
    updating.join(60)
    assert versions == [2]
    kafka.acknowledge(1)
    session.close()


def test_an_update_that_is_not_acknowledged_in_time_says_so_and_is_sent_all_the_same() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own", SOON).session(user_id="u", state={"n": 1})
    kafka.held = []
    with pytest.raises(Unavailable, match="version 2 of the content is not acknowledged yet; it is still sent"):
        session.update_state({"n": 2})
    kafka.acknowledge(len(kafka.held))
    kafka.held = None
    assert session.update_state({"n": 3}) == 3
    view = session.sync()
    assert (view.version, session.state, updates_of(kafka)) == (3, {"n": 3}, [2, 3])


def test_a_lost_update_says_so() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own").session(user_id="u", state={"n": 1})
    kafka.held, before = [], len(kafka.records())
    errors: list[Unavailable] = []

    def update() -> None:
        with pytest.raises(Unavailable) as caught:
            session.update_state({"n": 2})
        errors.append(caught.value)

    updating = threading.Thread(target=update)
    updating.start()
    wait_for_update(kafka, before)
    on_receipt, _ = kafka.held.pop()
    on_receipt(Receipt(None, None, "dropped"))
    updating.join(60)
    assert "version 2 of the content is not recorded" in str(errors[0])
    assert "dropped" in str(errors[0])


def test_an_update_waits_for_nothing_if_it_is_asked_so() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own", SOON).session(user_id="u", state={"n": 1})
    kafka.held = []
    assert [session.update_state({"n": n}, wait=False) for n in (2, 3)] == [2, 3]
    kafka.acknowledge(len(kafka.held))


def test_an_asynchronous_update_waits_without_holding_up_the_loop() -> None:
    kafka = SlowKafka()

    async def update() -> tuple[bool, int]:
        client = AsyncSessionClient(
            tenant_id="acme", service_id="shop", agent_id="own", settings=ProducerSettings(), ports=memory_ports(kafka)
        )
        async with client, client.session(user_id="u", state={"n": 1}) as session:
            kafka.held, before = [], len(kafka.records())
            updating = asyncio.ensure_future(session.update_state({"n": 2}))
            await asyncio.to_thread(wait_for_update, kafka, before)
            waited = not updating.done()
            kafka.acknowledge(len(kafka.held))
            version = await updating
            assert await session.update_state({"n": 3}, wait=False) == 3
            kafka.acknowledge(len(kafka.held))
            kafka.held = None
            return waited, version

    assert asyncio.run(update()) == (True, 2)


def test_a_client_that_is_turned_off_waits_for_nothing() -> None:
    settings = ProducerSettings.from_env({"SESSIONARY_DISABLED": "1"}, verdict_timeout_s=20.0)
    client = SessionClient(tenant_id="acme", service_id="shop", agent_id="own", settings=settings)
    with client, client.session(user_id="u") as session:
        assert session.update_state({"n": 2}) == 2
