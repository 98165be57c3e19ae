"""How many workers of the role quotas run: the members of their group, by Kafka."""

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from sessionary.schemas.kafka.admin_connection import AdminConnection, take_answer
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.settings import quotas_group

_TIMEOUT_S: Final = 3.0


def count_quota_workers(settings: KafkaSettings) -> int:
    """Return the number of members. One that was killed counts until its session timeout.

    Blocks for up to 4 s. Raises `Lost` if Kafka does not tell.
    """
    group = quotas_group(settings.topic_prefix)
    connection = AdminConnection(settings)
    try:
        asked = connection.open_client().describe_consumer_groups([group], request_timeout=_TIMEOUT_S)
        return len(take_answer(asked[group], _TIMEOUT_S).members)
    except (KafkaException, TimeoutError) as error:
        cause = error.args[0] if isinstance(error, KafkaException) else None
        if cause is not None and cause.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return 0
        why = "no answer in time" if cause is None else cause.str()
        raise Lost(f"Kafka does not tell whether the group {group} has a member: {why}") from None
    finally:
        connection.end_client()
