"""What `sync` and `attach` read of the processor, and what they wait for."""

import threading

import pytest

from sessionary.producers import ProducerSettings, Unavailable
from sessionary.producers.ports import Receipt
from sessionary.producers.run_ports import LOG_END
from sessionary.producers.testing import memory_client
from tests.core.producers.slow_kafka import SlowKafka, client_of
from tests.support.waiting import wait_until


def test_sync_waits_for_the_clients_own_last_event_and_for_no_other() -> None:
    kafka = SlowKafka()
    own, busy = client_of(kafka, "own"), client_of(kafka, "busy")
    session = own.session(user_id="u")
    other = busy.attach(session.session_id)
    for _ in range(5):
        other.activity("before")
    session.activity("last")
    own_last = len(kafka.records()) - 1
    for _ in range(20):
        other.activity("after")
    kafka.asked.clear()
    assert session.sync().state == "Active"
    assert kafka.asked == [(0, own_last)]


def test_sync_waits_until_its_event_is_delivered() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own").session(user_id="u", state={"n": 1})
    kafka.held = []
    session.update_state({"n": 2}, wait=False)
    sent = len(kafka.held)
    ended = threading.Thread(target=session.sync)
    ended.start()
    kafka.acknowledge(sent - 1)
    ended.join(0.1)
    assert ended.is_alive()
    assert kafka.asked == []
    kafka.acknowledge(1)
    ended.join(60)
    assert not ended.is_alive()
    assert kafka.asked == [(0, len(kafka.records()) - 1)]
    assert (session.version, session.state) == (2, {"n": 2})


def test_sync_gives_up_if_its_event_is_not_delivered() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own", ProducerSettings.from_env({}, verdict_timeout_s=0.05)).session(user_id="u")
    kafka.held = []
    session.activity("x")
    with pytest.raises(Unavailable, match="1 events of the session are not delivered yet"):
        session.sync()
    kafka.acknowledge(1)
    session.sync()


def test_sync_does_not_wait_for_lost_events() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own").session(user_id="u")
    kafka.held = []
    for _ in range(2):
        session.activity("x")
    delivered, (on_receipt, _) = kafka.held[0][1], kafka.held.pop()
    kafka.acknowledge(1)
    on_receipt(Receipt(None, None, "dropped"))
    session.sync()
    assert kafka.asked == [(delivered.partition, delivered.offset)]


def test_sync_without_an_event_of_its_own_waits_for_nothing_once_it_is_attached() -> None:
    kafka = SlowKafka()
    session = client_of(kafka, "own").session(user_id="u")
    client_of(kafka, "other").attach(session.session_id).sync()
    assert kafka.asked == [LOG_END, None]


def test_sync_tells_the_verdict_on_the_last_event() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        session.activity("x")
        verdict = session.sync().verdict
        assert verdict is not None
        assert verdict.applied


def test_an_attached_session_waits_for_what_its_client_sent_before() -> None:
    kafka = SlowKafka()
    client = client_of(kafka, "own")
    session = client.session(user_id="u")
    kafka.held = []
    session.activity("x")
    attached = threading.Thread(target=client.attach, args=(session.session_id,))
    attached.start()
    attached.join(0.1)
    assert attached.is_alive()
    kafka.acknowledge(1)
    wait_until(lambda: not attached.is_alive(), 60, "attach to return")
    assert kafka.asked == [(0, len(kafka.records()) - 1)]
