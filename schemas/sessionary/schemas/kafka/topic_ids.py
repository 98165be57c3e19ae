"""Asks for a topic's id: a topic that was deleted and created again has another one."""

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from sessionary.schemas.kafka.clients import discard_client, take_answer
from sessionary.schemas.settings import KafkaSettings

_ANSWER_S = 1.0  # the client reports a request's time-out itself, this much later at most
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # brokers before Kafka 2.8


class TopicIdClient:
    """Asks over one connection, and over a new one after a failure. For one thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._config = settings.client_config()
        self._admin: AdminClient | None = None

    def ask_id(self, topic: str, timeout_s: float) -> str | None:
        """Return the id of a topic as Kafka's tools print it; None if the broker gives topics none.

        Blocks for `timeout_s` and a second at most. Raises `KafkaException`.
        """
        if self._admin is None:
            self._admin = AdminClient({**self._config, "allow.auto.create.topics": False})
        try:
            answers = self._admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
            found = str(take_answer(answers[topic], timeout_s + _ANSWER_S).topic_id)
        except (KafkaException, TimeoutError) as error:
            admin, self._admin = self._admin, None
            discard_client(admin)
            if isinstance(error, TimeoutError):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
            raise
        return None if found == _NO_ID else found


__all__ = ["TopicIdClient"]
