"""Losses as they happen to a ClickHouse server and to the groups of sinks."""

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.core.sink_kinds import SINKS, SinkKind
from sessionary.sinks.settings import SinkSettings
from tests.support.pipelines import run_sql
from tests.support.waiting import wait_until

_ASK_S = 120.0


def delete_rows(clickhouse: ClickHouseSettings, table: str, where: str) -> None:
    """Delete rows of a table."""
    run_sql(
        clickhouse,
        f"ALTER TABLE {clickhouse.clickhouse_database}.{table} DELETE WHERE {where} SETTINGS mutations_sync = 2",
    )


def drop_part(clickhouse: ClickHouseSettings, table: str, where: str = "true") -> dict[int, int]:
    """Delete the part with the fewest rows of those that have such a row.

    Return how many rows it had of each partition of Kafka.
    """
    place = f"{clickhouse.clickhouse_database}.{table}"
    run_sql(clickhouse, f"SYSTEM STOP MERGES {place}")  # the part stays until it is dropped
    part = f"SELECT _part FROM {place} GROUP BY _part HAVING countIf({where}) > 0 ORDER BY count(), _part LIMIT 1"
    name = run_sql(clickhouse, part).strip()
    counts = f"SELECT src_partition, count() FROM {place} WHERE _part = '{name}' GROUP BY src_partition"
    lost = [line.split() for line in run_sql(clickhouse, counts).splitlines()]
    run_sql(clickhouse, f"ALTER TABLE {place} DROP PART '{name}'")
    return {int(partition): int(count) for partition, count in lost}


def commit_offset(
    settings: SinkSettings, kind: SinkKind, partition: int, offset: int | None = None, metadata: str = ""
) -> int:
    """Move a sink's offset, as an operator's tool does; None: to the end of the log. Return it.

    Waits until the sink's group has no members: a static one that has ended stays for seconds.
    """
    place = TopicPartition(getattr(settings.topics, SINKS[kind].topic), partition, metadata=metadata)
    consumer = Consumer({**settings.client_config(), "group.id": settings.group_id(kind)})
    try:
        place.offset = consumer.get_watermark_offsets(place, timeout=_ASK_S)[1] if offset is None else offset
        wait_until(lambda: _is_committed(consumer, place), 60, f"the offset of {kind}, partition {partition}")
    finally:
        consumer.close()
    return place.offset


def _is_committed(consumer: Consumer, place: TopicPartition) -> bool:
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID:
            return False
        raise
    return True
