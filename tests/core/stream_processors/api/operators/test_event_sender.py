"""An event that a person asks for, on its way to a broker."""

import pytest

from sessionary.schemas.codec import Event
from sessionary.schemas.ids import partition_of
from sessionary.stream_processors.api.operators import event_sender
from sessionary.stream_processors.api.operators.event_sender import EventSender
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.settings import ProcessorSettings
from tests.support.event_factory import EventFactory, payload_of
from tests.support.mock_cluster import mock_cluster

PARTITIONS = 4


def an_event() -> tuple[Event, int]:
    agent = EventFactory()
    event = Event(agent.envelope("session_paused"), payload_of("session_paused"))
    return event, partition_of(agent.key.encoded(), PARTITIONS)


def test_an_event_goes_to_the_partition_of_its_session_and_its_place_is_known() -> None:
    event, partition = an_event()
    with mock_cluster() as cluster:
        settings = ProcessorSettings(bootstrap_servers=cluster.bootstrap_servers, partitions=PARTITIONS)
        sender = EventSender(settings)
        first, second = sender.send_event(event), sender.send_event(event)
        sender.close()
        assert first.partition == second.partition == partition
        assert second.offset == first.offset + 1
        sender.close()


def test_an_event_that_no_broker_takes_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sender, "_TIMEOUT_S", 0.5)
    sender = EventSender(ProcessorSettings(bootstrap_servers="127.0.0.1:1", partitions=PARTITIONS))
    for _ in range(2):  # with a new producer, too
        with pytest.raises(Lost, match="session_paused was not acknowledged"):
            sender.send_event(an_event()[0])
    sender.close()
