from confluent_kafka import KafkaError, Message

from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.runtime.kafka_client import consumer_config, records_from_messages, split_messages
from sessionary.sinks.settings import SinkSettings


def test_messages_become_records_with_their_headers() -> None:
    messages = [
        Message("t.audit", 2, 5, b"k", b"v", [("h", b"1"), ("h", None)], timestamp=(1, 1_005)),
        Message("t.audit", 2, 6, b"k", None, timestamp=(1, 1_006)),
    ]
    full, empty = records_from_messages("t.audit", 2, messages)
    assert full[:6] == ("t.audit", 2, 5, 1_005, b"k", b"v")
    assert full.headers == [("h", b"1"), ("h", b"")]
    assert full.size == 2
    assert (empty.offset, empty.value, empty.headers, empty.size) == (6, None, [], 1)


def test_every_sink_reads_committed_records_only_and_an_instance_has_its_own_name() -> None:
    settings = SinkSettings(instance="a", sink_session_timeout_ms=6_000)
    configs = {kind: consumer_config(definition, settings) for kind, definition in SINKS.items()}
    assert {config["isolation.level"] for config in configs.values()} == {"read_committed"}
    assert configs["audit"]["group.instance.id"] == "sessionary.sink.audit.a"
    assert configs["audit"]["heartbeat.interval.ms"] == 1_000
    assert "group.instance.id" not in consumer_config(SINKS["audit"], SinkSettings())


def test_messages_are_split_where_their_partition_or_their_kind_changes() -> None:
    end = KafkaError(KafkaError._PARTITION_EOF)
    places = [(0, None), (0, None), (1, None), (1, end), (1, end), (1, None), (0, None)]
    messages = [Message("t.audit", number, offset, error=error) for offset, (number, error) in enumerate(places)]
    found = [(number, kind, [one.offset() for one in part]) for number, kind, part in split_messages(messages)]
    assert found == [(0, True, [0, 1]), (1, True, [2]), (1, False, [3, 4]), (1, True, [5]), (0, True, [6])]
    assert list(split_messages([])) == []
