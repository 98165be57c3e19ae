"""Asks for a topic's id: a topic that was deleted and created again has another one."""

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from sessionary.schemas.kafka.admin_connection import AdminConnection, take_answer

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # brokers before Kafka 2.8


def ask_topic_id(connection: AdminConnection, topic: str, timeout_s: float) -> str | None:
    """Return the id of a topic as Kafka's tools print it; None if the broker gives topics none.

    Blocks for `timeout_s` and a second at most. Raises `KafkaException`.
    """
    try:
        answers = connection.open_client().describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
        found = str(take_answer(answers[topic], timeout_s).topic_id)
    except (KafkaException, TimeoutError) as error:
        connection.end_client()
        if isinstance(error, TimeoutError):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
        raise
    return None if found == _NO_ID else found
