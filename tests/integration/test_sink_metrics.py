"""A running sink serves every metric, and its work moves them."""

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from sessionary.infra.local.ports import free_port
from sessionary.schemas.kafka.admin_connection import AdminConnection
from sessionary.schemas.kafka.topic_ids import ask_topic_id
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.core.intent import Intent
from sessionary.sinks.metrics import HELP
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import encoded_audits, group_lag, produce_records, settings_for, sink_in_thread
from tests.support.metrics_page import metric_values, read_page
from tests.support.migrated_tables import make_tables
from tests.support.sink_records import NOW_US
from tests.support.waiting import wait_until

REPLAYED, DELETED = 2, 3


class MovedMetrics:
    """The metrics of which a series was not 0 on any page so far."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.names: set[str] = set()

    def have(self, *names: str) -> bool:
        """Read the page, and return whether all of these have moved."""
        moved = {series.partition("{")[0] for series, value in metric_values(self._port).items() if value != 0}
        self.names |= {name.removesuffix("_count") for name in moved}
        return self.names >= {f"sessionary_sink_{name}" for name in names}


def commit_offsets(settings: SinkSettings, offsets: dict[int, str | None]) -> None:
    """Commit offset 0 of these partitions in the stopped sink's place, with metadata."""
    owner = Consumer({**settings.client_config(), "group.id": settings.group_id("audit")})
    for partition, metadata in offsets.items():
        place = TopicPartition(settings.topics.audit, partition, 0)
        if metadata is not None:
            place = TopicPartition(settings.topics.audit, partition, 0, metadata=metadata)
        owner.commit(offsets=[place], asynchronous=False)
    owner.close()


def delete_records(kafka: KafkaSettings, partition: int, offset: int) -> None:
    place = TopicPartition(kafka.topics.audit, partition, offset)
    admin = AdminClient(kafka.client_config())  # the answer needs it
    admin.delete_records([place])[place].result(120)


def test_a_sink_serves_every_metric_and_its_work_moves_them(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings
) -> None:
    port = free_port()
    # No instance name: the member leaves when it stops, so that the test can commit in its place.
    settings = settings_for(kafka, clickhouse, instance=None, metrics_port=port, sink_flush_rows=50)
    moved = MovedMetrics(port)
    produce_records(kafka, kafka.topics.audit, [*encoded_audits(0, 4, each=50), (1, b"no record")])
    with sink_in_thread("audit", settings):
        wait_until(lambda: moved.have("blocked", "retries_total"), 60, "the wait for tables")
        _, text = read_page(f"http://127.0.0.1:{port}/metrics")
        assert [name for name in HELP if f"# HELP {name} " not in text] == []
        make_tables(clickhouse)
        work = ("rows_total", "blocks_total", "landed_offset", "insert_seconds", "dead_letters_total")
        wait_until(lambda: moved.have(*work), 60, "the work")
        wait_until(lambda: group_lag(settings, "audit", kafka.topics.audit) == 0, 30, "all to land")
    # A crash between insert and commit leaves the offset of the block's start, with the intent.
    topic_id = ask_topic_id(AdminConnection(kafka), kafka.topics.audit, 60.0)
    commit_offsets(settings, {REPLAYED: Intent(49, 50, NOW_US // 1_000, topic_id).to_metadata(), DELETED: None})
    delete_records(kafka, DELETED, 10)
    with sink_in_thread("audit", settings):
        replayed = ("replays_total", "replay_age_seconds", "deduplication_window_used")
        wait_until(lambda: moved.have(*replayed), 60, "a replay")
        waiting = ("partition_blocked", "lag_records", "lag_seconds")
        wait_until(lambda: moved.have(*waiting), 60, "a partition whose log begins too late")
    assert moved.names >= set(HELP)
