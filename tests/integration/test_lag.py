"""Lag on a real broker: beside Kafka's own command and a sink's metrics, and through an outage."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sessionary.infra.cli.commands import doctor
from sessionary.infra.lag import metrics as lag_metrics
from sessionary.infra.lag.exporter import run_exporter
from sessionary.infra.lag.lag_monitor import LagMonitor
from sessionary.infra.lag.lag_tracker import PartitionLag
from sessionary.infra.lag.metrics import RowDelay, ask_row_delays
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.local.ports import free_port
from sessionary.infra.settings import LagSettings
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.metrics import HELP as SINK_METRICS
from tests.integration.pipeline_rig import PipelineRig
from tests.integration.sink_rig import encoded_audits, produce_records, settings_for, sink_in_thread
from tests.support.kafka_tools import describe_group
from tests.support.metrics_page import metric_value, read_page
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import environment, new_clickhouse, new_pipeline, run_sql
from tests.support.processes import Processes
from tests.support.waiting import wait_until

COMMAND = str(Path(sys.executable).parent / "sessionary")


def _commit_offsets(kafka: KafkaSettings, group: str, topic: str, offsets: dict[int, int]) -> None:
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    admin = AdminClient(kafka.client_config())

    def alter_offsets() -> bool:
        (done,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
        return all(place.error is None for place in done.result(120).topic_partitions)

    wait_until(alter_offsets, 60, "a coordinator of the group")  # a new broker has none yet


def _lags(kafka: KafkaSettings) -> dict[tuple[str, str, int | None], PartitionLag]:
    """Return the lags by group, topic and partition, once every partition has answered."""
    with closing(LagMonitor(kafka)) as monitor:

        def take_lags() -> list[PartitionLag]:
            lags = list(monitor.take_report().partitions)
            known = all(lag.state != "unknown" and (lag.lag_s is not None or not lag.lag) for lag in lags)
            return lags if known else []

        return {(lag.group, lag.topic, lag.partition): lag for lag in wait_until(take_lags, 60, "all answers")}


def test_lag_agrees_with_kafkas_own_command_but_for_two_differences(kafka: KafkaSettings) -> None:
    """Kafka's command counts a trailing marker, and leaves out partitions without a commit."""
    group, topic = f"{kafka.topic_prefix}.sink.audit", kafka.topics.audit
    records = [(partition, b"record") for partition in (0, 1, 2) for _ in range(5)]
    produce_records(kafka, topic, records)  # offsets 0 to 4, and a marker at 5
    produce_records(kafka, topic, [(1, b"later")] * 3)  # 6 to 8, and a marker
    produce_records(kafka, topic, [(3, b"aborted")] * 4, commit=False)  # nothing to read, and a marker
    _commit_offsets(kafka, group, topic, {0: 5, 1: 5, 3: 0})
    ours = {place[2]: lag for place, lag in _lags(kafka).items() if place[0] == group}
    theirs = describe_group(kafka.bootstrap_servers, group)
    assert {partition: ours[partition].lag for partition in range(4)} == {0: 0, 1: 5, 2: 6, 3: 0}
    assert theirs == {(topic, 0): (5, 6, 1), (topic, 1): (5, 10, 5), (topic, 3): (0, 5, 5)}
    trailing_markers, never_committed = {0, 3}, {2}
    agreeing = set(range(4)) - trailing_markers - never_committed
    assert {partition: theirs[topic, partition][2] for partition in agreeing} == {1: ours[1].lag}
    for partition in (0, 1, 3):
        lag = ours[partition]
        assert (lag.committed, lag.log_end) == theirs[topic, partition][:2]
    assert {ours[partition].group_state for partition in range(4)} == {"empty"}
    assert [ours[partition].state for partition in range(4)] == ["ok", "observing", "observing", "ok"]
    _check_ages(ours)


def _check_ages(ours: dict[int | None, PartitionLag]) -> None:
    """Partition 2 waits for an older record than partition 1, and nothing waits in the others."""
    first, never = ours[1], ours[2]
    assert first.lag_s is not None
    assert never.lag_s is not None
    assert 0 < first.lag_s <= never.lag_s
    assert [ours[partition].lag_s for partition in (0, 3)] == [0.0, 0.0]
    assert first.newest_record_age_s is not None
    assert first.newest_record_age_s <= first.lag_s


def test_groups_and_topics_that_are_missing_have_names_and_no_zeros(kafka: KafkaSettings) -> None:
    admin, topic = AdminClient(kafka.client_config()), kafka.topics.batches
    wait_until(lambda: topic in admin.list_topics(timeout=60).topics, 30, "the topic to come")
    for done in admin.delete_topics([topic]).values():
        done.result(120)
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, 30, "the topic to go")
    produce_records(kafka, kafka.topics.cleanup, [(1, b"request")])
    handler = f"{kafka.topic_prefix}.cleanup.acme:billing"
    _commit_offsets(kafka, handler, kafka.topics.cleanup, {0: 0})
    ours = _lags(kafka)
    gone = ours[f"{kafka.topic_prefix}.sink.batches", topic, None]
    assert (gone.state, gone.group_state, gone.lag) == ("no_topic", "absent", None)
    processor = ours[f"{kafka.topic_prefix}.processor", kafka.topics.events, 0]
    assert (processor.group_state, processor.lag, processor.state) == ("absent", 0, "ok")
    requests = [ours[handler, kafka.topics.cleanup, partition] for partition in range(4)]
    assert [lag.lag for lag in requests] == [0, 2, 0, 0]
    assert (requests[1].group_state, requests[1].committed) == ("empty", None)


def test_a_topic_of_a_users_own_agent_is_shown_with_the_processors_group(kafka: KafkaSettings) -> None:
    group, topic = f"{kafka.topic_prefix}.processor", kafka.topics.cleanup
    produce_records(kafka, topic, [(3, b"invoice")] * 2)
    _commit_offsets(kafka, group, topic, {3: 1})
    lags = [lag for lag in _lags(kafka).values() if lag.group == group]
    assert {lag.topic for lag in lags} == {topic, kafka.topics.events}
    assert [lag.lag for lag in lags if lag.topic == topic] == [0, 0, 0, 2]


def test_several_groups_at_several_offsets_of_a_partition_are_read_at_once(kafka: KafkaSettings) -> None:
    topic = kafka.topics.cleanup
    for number in range(6):
        produce_records(kafka, topic, [(0, b"request %d" % number)])  # offsets 0, 2, 4 …, each with a marker
    groups = {f"{kafka.topic_prefix}.cleanup.acme:s{number}": offset for number, offset in enumerate((0, 1, 4, 9, 11))}
    for group, offset in groups.items():
        _commit_offsets(kafka, group, topic, {0: offset})
    ours = _lags(kafka)
    ages = [ours[group, topic, 0].lag_s for group in groups]
    assert ages == sorted(ages, key=lambda age: -(age or 0))
    assert (ages[3] or 0) > 0 == ages[4]


_SOON = {"kpi_interval_s": 1, "integrity_interval_s": 1}


@contextmanager
def running_exporter(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings | None = None, *, window_s: float = 60.0
) -> Iterator[int]:
    """Run the exporter in a thread; yields its port. A question that failed is soon asked again."""
    port, stop = free_port(), threading.Event()
    given = {**kafka.model_dump(), **(clickhouse.model_dump() if clickhouse is not None else {})}
    settings = LagSettings.model_validate({**given, "metrics_port": port, "lag_window_s": window_s, **_SOON})
    thread = threading.Thread(target=run_exporter, args=(settings, stop), name="lag-exporter")
    thread.start()
    try:
        yield port
    finally:
        stop.set()
        thread.join(180)
    assert not thread.is_alive()


def _series(kafka: KafkaSettings, metric: str, partition: int) -> str:
    labels = f'group="{kafka.topic_prefix}.sink.audit",partition="{partition}",topic="{kafka.topics.audit}"'
    return f"sessionary_lag_{metric}{{{labels}}}"


def test_the_exporter_shows_a_lag_and_no_lag_at_all_while_the_broker_is_away(broker: LocalBroker) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)
    with running_exporter(kafka) as port:
        records = _series(kafka, "records", 0)
        wait_until(lambda: metric_value(port, records) == 0.0, 30, "a sample without lag")
        wait_until(lambda: read_page(f"http://127.0.0.1:{port}/readyz") == (200, "ok\n"), 60, "to be ready")
        produce_records(kafka, kafka.topics.audit, [(0, b"record")] * 5)
        wait_until(lambda: metric_value(port, records) == 6.0, 20, "the lag")
        wait_until(lambda: (metric_value(port, _series(kafka, "seconds", 0)) or 0) > 0, 20, "the time lag")
        broker.stop()
        wait_until(lambda: metric_value(port, "sessionary_lag_broker_up") == 0.0, 30, "the broker to be missed")
        assert metric_value(port, records) is None
        code, text = read_page(f"http://127.0.0.1:{port}/readyz")
        assert code == 503
        assert "does not answer" in text
        broker.start()
        broker.wait_ready()
        wait_until(lambda: metric_value(port, records) == 6.0, 60, "the lag after the broker's restart")


def are_near(theirs: float | None, ours: float | None) -> bool:
    """Return whether two ages are known, above 0 and about the same."""
    return bool(theirs and ours and 0 < ours == pytest.approx(theirs, abs=10))


def test_lag_agrees_with_a_sinks_own_metrics(kafka: KafkaSettings, own_clickhouse: LocalClickHouse) -> None:
    clickhouse = new_clickhouse(own_clickhouse.url)
    make_tables(clickhouse)
    settings = settings_for(kafka, clickhouse, metrics_port=free_port())
    assert settings.metrics_port is not None
    group, sink_port = settings.group_id("audit"), settings.metrics_port

    def of_sink(metric: str, partition: int) -> float | None:
        assert f"sessionary_sink_{metric}" in SINK_METRICS
        labels = f'group="{group}",partition="{partition}",sink="audit"'
        return metric_value(sink_port, f"sessionary_sink_{metric}{{{labels}}}")

    with running_exporter(kafka, clickhouse) as port, sink_in_thread("audit", settings):

        def agree(lags: set[float]) -> bool:
            pairs = [
                (of_sink(theirs, partition), metric_value(port, _series(kafka, ours, partition)))
                for theirs, ours in (("lag_records", "records"), ("landed_offset", "committed_offset"))
                for partition in range(4)
            ]
            return all(theirs == ours for theirs, ours in pairs) and {pair[1] for pair in pairs[:4]} == lags

        produce_records(kafka, kafka.topics.audit, encoded_audits(0, sessions=4))
        wait_until(lambda: agree({0.0}), 60, "both to say that all has landed")
        own_clickhouse.stop()
        produce_records(kafka, kafka.topics.audit, encoded_audits(4, sessions=4))
        wait_until(lambda: agree({11.0}), 60, "both to count ten records and a marker per partition")
        # On a busy machine the two are asked, and have looked, at different times.
        wait_until(
            lambda: are_near(of_sink("lag_seconds", 0), metric_value(port, _series(kafka, "seconds", 0))),
            60,
            "both to tell the same age",
        )
        own_clickhouse.start()
        own_clickhouse.wait_ready()
        wait_until(lambda: agree({0.0}), 90, "both to say that all has landed after the outage")


def test_lag_agrees_with_a_processors_own_metrics(kafka: KafkaSettings, processes: Processes) -> None:
    rig = PipelineRig(kafka, None, processes)
    # No registry answers there, so a record in Confluent's framing cannot be judged: it waits.
    rig.start_processor(schema_registry_url="http://127.0.0.1:1")
    with running_exporter(kafka) as port:

        def of_exporter(metric: str, partition: int) -> float | None:
            labels = f'group="{kafka.topic_prefix}.processor",partition="{partition}",topic="{kafka.topics.events}"'
            return metric_value(port, f"sessionary_lag_{metric}{{{labels}}}")

        def of_processor(metric: str, partition: int) -> float | None:
            return metric_value(rig.api_port, f'sessionary_processor_{metric}{{partition="{partition}"}}')

        def agree(offset: float) -> bool:
            for partition in range(4):
                committed, lag = (of_exporter(name, partition) for name in ("committed_offset", "records"))
                if (committed, lag, of_processor("next_offset", partition)) != (offset, 0.0, offset):
                    return False
            return True

        produce_records(kafka, kafka.topics.events, [(number % 4, b"no event") for number in range(20)])
        # The processor's position is behind its last record; the marker that follows is no lag.
        wait_until(lambda: agree(5.0), 60, "both to say that five records of each partition are folded")
        produce_records(
            kafka, kafka.topics.events, [(1, b"\x00\x00\x00\x00\x07value"), (1, b"no event"), (1, b"no event")]
        )

        def lag_pair() -> tuple[float | None, float | None]:
            return of_exporter("records", 1), of_processor("lag_records", 1)

        # From the position on: the former marker, three records, and a marker.
        wait_until(lambda: lag_pair() == (5.0, 5.0), 60, f"both to say that three records wait (last: {lag_pair()})")
        wait_until(
            lambda: are_near(of_processor("lag_seconds", 1), of_exporter("seconds", 1)), 60, "both to tell the same age"
        )
        wait_until(
            lambda: (of_exporter("records", 0), of_processor("lag_records", 0)) == (0.0, 0.0), 60, "no lag elsewhere"
        )


def test_doctor_names_a_group_that_does_not_read(kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LAG_S_MAX", 0.0)
    produce_records(kafka, kafka.topics.audit, [(0, b"record")] * 5)
    environ = environment(kafka, clickhouse_url=f"http://127.0.0.1:{free_port()}")

    def checks() -> dict[str, doctor.Check]:
        """Return them once the oldest record was read: a busy machine may not manage it in time."""
        made = {check.check: check for check in doctor.run_checks(environ)}
        return made if "lag sink.audit" in made and not made["lag sink.audit"].ok else {}

    found = wait_until(checks, 60, "the audit sink's lag to be found")
    history = "0 records behind, and it has no member: the role does not run"
    assert found["lag sink.history"].found == history
    wrong = found["lag sink.audit"]
    assert wrong.found.startswith("6 records behind, the oldest of ")
    assert wrong.found.endswith(", and no member reads them")
    assert "sessionary serve sink audit" in wrong.advice


def test_rows_of_the_last_minute_tell_their_delay(
    clickhouse: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_metrics, "_TIMEOUT_S", 120.0)
    make_tables(clickhouse)
    assert ask_row_delays(clickhouse) == ()
    for table, delays_s in (("history", (4, 1, 2)), ("rejected", (3,))):
        rows = " UNION ALL ".join(
            # Some minutes ahead: on a busy machine more than one may pass until they are asked for.
            f"SELECT {offset}, now64(3) + 600 - {delay_s}, now64(3) + 600"
            for offset, delay_s in enumerate(delays_s)
        )
        run_sql(
            clickhouse,
            f"INSERT INTO {clickhouse.clickhouse_database}.{table} (source_offset, appended_at, landed_at) {rows}",
        )
    assert ask_row_delays(clickhouse) == (RowDelay("history", 3, 2.0, 4.0, 4.0), RowDelay("rejected", 1, 3.0, 3.0, 3.0))


def test_the_command_prints_a_line_per_partition(kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> None:
    make_tables(clickhouse)
    produce_records(kafka, kafka.topics.audit, [(2, b"record")] * 5)
    env, group = environment(kafka, clickhouse), f"{kafka.topic_prefix}.sink.audit"

    def run_lag() -> dict[tuple[str, int], dict[str, Any]]:
        """Return the rows; empty if a busy machine did not answer in time, or not in full."""
        done = subprocess.run([COMMAND, "lag"], env=env, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode or "does not answer" in done.stderr:
            return {}
        rows = {(row["group"], row["partition"]): row for row in map(json.loads, done.stdout.splitlines())}
        return rows if rows[group, 2]["lag_s"] is not None else {}

    rows = wait_until(run_lag, 60, "the age of the oldest record")
    assert len(rows) == 5 * 4
    row = rows[group, 2]
    assert (row["group_state"], row["state"], row["committed"], row["lag"]) == ("absent", "observing", None, 6)
    assert row["lag_s"] > 0


def test_a_command_that_watches_prints_a_row_a_round_until_ctrl_c(kafka: KafkaSettings, processes: Processes) -> None:
    environ = environment(kafka, lag_interval_s="0.2", clickhouse_url=f"http://127.0.0.1:{free_port()}")
    watching = processes.run([COMMAND, "lag", "--watch"], env=environ, name="watch")
    group = f"{kafka.topic_prefix}.sink.audit"

    def rows() -> list[dict[str, Any]]:
        lines = watching.log.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]
        # A round in which a busy machine does not answer in time knows no lag.
        return [row for row in found if (row["group"], row["partition"]) == (group, 2) and row["lag"] is not None]

    wait_until(lambda: len(rows()) > 1, 60, "two rounds")
    assert {row["lag"] for row in rows()} == {0}
    produce_records(kafka, kafka.topics.audit, [(2, b"record")] * 5)
    wait_until(lambda: rows()[-1]["lag"] == 6 and (rows()[-1]["lag_s"] or 0) > 0, 60, "the lag in a later round")
    times = [row["at"] for row in rows()]
    assert times == sorted(set(times)), "each round has a time of its own"
    watching.signal(signal.SIGINT)
    assert watching.wait(180)
    assert watching.exit_code == 0
    assert "Traceback" not in watching.log.read_text()


def test_a_group_with_members_that_moves_is_ok_and_one_that_stands_still_stalls(kafka: KafkaSettings) -> None:
    """A window of 2 s instead of a minute."""
    topic = kafka.topics.cleanup
    group = f"{kafka.topic_prefix}.cleanup.acme:billing"
    producer = Producer(kafka.client_config())
    for _ in range(5_000):  # more than the group commits until it is known to move
        producer.produce(topic, b"request", partition=0)
    assert producer.flush(120) == 0
    consumer = Consumer({**kafka.client_config(), "group.id": group, "enable.auto.commit": False})
    consumer.subscribe([topic])
    wait_until(lambda: len(consumer.assignment()) + (consumer.poll(0.1) is None) > 1, 60, "an assignment")
    with closing(consumer), closing(LagMonitor(kafka, window_s=2.0)) as monitor:
        offset = 0

        def take_lag(*, move: bool) -> PartitionLag:
            nonlocal offset
            if move:
                offset += 1
                consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
            consumer.poll(0)
            (lag,) = [one for one in monitor.take_report().partitions if (one.group, one.partition) == (group, 0)]
            return lag

        def moves() -> bool:
            lag = take_lag(move=True)
            return lag.state == "ok" and lag.group_state == "stable" and (lag.catch_up_s or 0) > 0

        wait_until(moves, 30, "a group that catches up", pause_s=0.3)
        wait_until(lambda: take_lag(move=False).state == "stall", 30, "a group that stands still", pause_s=0.3)
