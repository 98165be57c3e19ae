"""What a group has not read, by a real broker."""

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from sessionary.schemas.settings import KafkaSettings
from tests.chaos.unread_records import find_unread
from tests.support.waiting import wait_until


def knows_group(reader: Consumer, topic: str) -> bool:
    """Return whether the reader's group has a coordinator; a new broker makes one late."""
    try:
        return bool(reader.committed([TopicPartition(topic, 0)], timeout=30))
    except KafkaException:
        return False


def test_a_marker_behind_the_committed_offset_is_no_record(kafka: KafkaSettings) -> None:
    events, group = kafka.topics.events, f"{kafka.topic_prefix}.processor"
    writer = Producer({**kafka.client_config(), "transactional.id": f"{kafka.topic_prefix}.rules"})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(events, b"rules begin", partition=0)
    writer.commit_transaction(30)
    reader = Consumer({**kafka.client_config(), "group.id": group})
    try:
        wait_until(lambda: knows_group(reader, events), 60, "a coordinator")
        assert find_unread(kafka.bootstrap_servers, group, events, [0, 1]) == {0: 0}
        reader.commit(offsets=[TopicPartition(events, 0, 1)], asynchronous=False)
        assert reader.get_watermark_offsets(TopicPartition(events, 0), timeout=30)[1] == 2
        assert find_unread(kafka.bootstrap_servers, group, events, [0, 1]) == {}
        writer.begin_transaction()
        writer.produce(events, b"another", partition=0)
        writer.commit_transaction(30)
        assert find_unread(kafka.bootstrap_servers, group, events, [0, 1]) == {0: 2}
    finally:
        reader.close()
