"""A running worker serves every metric, and its work moves them; series go with their partition."""

import json
import time
import urllib.request
from pathlib import Path

from confluent_kafka import Producer

from sessionary.infra.local.ports import free_port, free_ports
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.events.run import RunStarted, ToolCallStarted
from sessionary.schemas.events.session import SessionCreated, SessionStartFailed
from sessionary.schemas.ids import partition_of
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.metrics import HELP
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from sessionary.stream_processors.store.stores import RocksMemory, RocksStore
from tests.integration.processor_load import (
    OUTAGE_MS,
    Agent,
    OutgoingRecord,
    Sender,
    agent_of_partition,
    start_processor,
)
from tests.integration.test_processor_api import get
from tests.integration.test_processor_road import LASTING, SHORT
from tests.support import Processes, wait_until
from tests.support.event_factory import snapshot
from tests.support.metrics_page import metric_values, read_page

# They are there only while something is wrong, or on the way.
PASSING = {"held_records", "partitions_halted", "recovery_remaining_records", "errors_total"}
# What an hour of ordinary work does not move, and is moved by other tests.
RESTING = {
    *("outage_grace_partitions", "outages_total", "token_file_failures_total"),
    *("lag_records", "lag_seconds", "timers_due", "quota_claims", "session_claims", "token_accounts"),
}

# So long that the fold waits for a registry before the deadline, on a busy machine too.
SILENT = SHORT._replace(init_ms=60_000, model_ms=5_000, tool_ms=5_000, network_ms=5_000)


def page_of(port: int) -> dict[str, float]:
    """Return the value of each series of a worker, by its name without the prefix."""
    return {name.removeprefix("sessionary_processor_"): value for name, value in metric_values(port).items()}


def moved_names(page: dict[str, float]) -> set[str]:
    """Return the names of the metrics of which a series is not 0."""
    names = {name.partition("{")[0] for name, value in page.items() if value != 0}
    return {name.removesuffix("_count") for name in names}


def lags_of(port: int) -> list[float]:
    """Return how many records each partition is behind its log."""
    return [value for name, value in page_of(port).items() if name.startswith("lag_records{")]


def reported_names() -> set[str]:
    return {name.removeprefix("sessionary_processor_") for name in HELP}


def test_a_worker_serves_every_metric_and_its_work_moves_them(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    port, lasting, failed, wrong = free_port(), Agent(), Agent(), Agent()
    settings = {"api_port": str(port), "store": "rocksdb", "state_dir": str(tmp_path)}
    # No registry answers there, so a record in Confluent's framing cannot be judged.
    settings["schema_registry_url"] = "http://127.0.0.1:1"
    settings["api_tokens"] = json.dumps({"token-a": lasting.key.tenant_id})
    settings["outage_grace_ms"] = "15000"  # for so long after a silence no timer fires, which a page has to show
    worker = start_processor(processes, kafka, "w1", **settings)
    wait_until(lambda: get(f"http://127.0.0.1:{port}/readyz").status == 200, 60, "the worker to be ready")
    _, text = read_page(f"http://127.0.0.1:{port}/metrics")
    assert [name for name in HELP if f"# HELP {name} " not in text] == []
    sender = Sender(kafka)
    sender.send(
        *lasting.start(LASTING), lasting.event(SessionCreated(Limits(), snapshot("first")), tenant_id="another")
    )
    sender.send(failed.start(SHORT)[0], failed.event(SessionStartFailed("invalid_config", None), seq=2))
    sender.send(wrong.event(SessionCreated(Limits(), snapshot("first")._replace(content_hash="0" * 64))))
    sender.send(lasting.event(SessionActivity("llm", None), context_bytes=200_000_001))  # 200 MB are allowed
    sender.send(lasting.event(RunStarted("detached", "report"), run_id="r1"))
    sender.send(lasting.event(RunStarted("attached", "report"), run_id="r2"))
    sender.send(lasting.event(ToolCallStarted("id", "pay", "key", "{}", 1, False, False), run_id="r1"))
    sender.flush()
    expected = reported_names() - PASSING - RESTING
    session = f"http://127.0.0.1:{port}/v1/sessions/{lasting.key.session_id}"
    wait_until(lambda: get(session).status == 200, 60, "the session to be known")
    following = urllib.request.Request(f"{session}/follow", headers={"Authorization": "Bearer token-a"})
    with urllib.request.urlopen(following, timeout=120):
        wait_until(lambda: moved_names(page_of(port)) >= expected, 60, f"all of {len(expected)} metrics to move")
    page = page_of(port)
    assert (
        page['sessions{state="Active"}'],
        page["tombstones"],
        page["sessions_over_context_limit"],
        page['state_hash_mismatches_total{source="agent"}'],
    ) == (1, 1, 1, 1)
    assert page['transitions_total{from_state="Idle",to_state="Active"}'] == 1
    rejected = {name: value for name, value in page.items() if name.startswith("rejected_total{")}
    assert sum(value for name, value in rejected.items() if 'security="true"' in name) == 1
    # The ends of the logs are asked for every few seconds: all else may have moved before that.
    wait_until(lambda: len(lags_of(port)) == kafka.partitions, 20, "the lag of each partition")
    wait_until(lambda: max(lags_of(port)) <= 1, 20, "a lag of a tick at most")
    partition, silent_s = (
        partition_of(lasting.key.encoded(), kafka.partitions),
        time.monotonic() + 2 * OUTAGE_MS / 1_000,
    )
    worker.kill()
    damage_store(tmp_path / f"{kafka.topic_prefix}-{partition}")
    wait_until(lambda: time.monotonic() > silent_s, 120, "a silence in which sessions are live")
    start_processor(processes, kafka, "w1", "tests.support.failing_worker", **settings)
    wait_until(
        lambda: page_of(port).get("outage_grace_partitions", 0) >= 1, 60, "the silence, after which no timer fires"
    )
    wait_until(lambda: page_of(port).get("outages_total", 0) >= 1, 60, "the count of outages")
    assert page_of(port)['state_hash_mismatches_total{source="store"}'] == 1
    wait_until(lambda: page_of(port).get('sessions{state="Active"}') == 1, 30, "the session counted after a recovery")
    sender.send(lasting.work())
    sender.flush()
    wait_until(lambda: page_of(port).get('errors_total{kind="judge"}') == 1, 20, "the event at which the judge fails")
    sender.send(*agent_of_partition(partition, kafka.partitions).start(SILENT))
    sender.flush()
    wait_until(lambda: page_of(port).get('sessions{state="Active"}') == 2, 60, "a session that falls silent")
    sender.send(lasting.start(SHORT)[1], OutgoingRecord(lasting.key.encoded(), b"\x00\x00\x00\x00\x07value"))
    sender.flush()
    _check_lag(port, partition)
    due = f'timers_due{{partition="{partition}"}}'
    wait_until(lambda: page_of(port).get(due) == 1, 60, "its deadline, not fired")


def damage_store(folder: Path) -> None:
    """Put a row into a partition's store that its changelog does not have, with a sum of its own.

    It takes itself for older than it is, so its worker compares it with the changelog's sum.
    """
    store = RocksStore(folder, FamilyCodec(SESSION_JUDGE.families), RocksMemory(1))
    saved = store.saved_position
    assert saved is not None
    assert saved.position.row_checksum is not None
    wrong = saved.position._replace(row_checksum=saved.position.row_checksum ^ 1)
    row = store.stored_row(next(iter(store.rows)))
    store.save_rows({b"acme:a-row-too-many": row}, saved._replace(position=wrong, changelog_next=0))
    store.close()


def _check_lag(port: int, partition: int) -> None:
    """Assert that a partition whose fold waits lags, and that the worker tells it soon."""
    records, seconds = (f'lag_{unit}{{partition="{partition}"}}' for unit in ("records", "seconds"))
    wait_until(lambda: page_of(port).get(records, 0) >= 1, 20, "the lag")
    first = wait_until(lambda: page_of(port).get(seconds), 60, "the lag in seconds")
    wait_until(lambda: page_of(port).get(seconds, 0) > first + 1, 60, "the lag to grow")
    wait_until(lambda: page_of(port).get('errors_total{kind="registry"}', 0) >= 1, 20, "its reason")


def test_the_series_of_a_partition_go_with_it_and_a_halted_one_leaves_its_worker_ready(
    kafka: KafkaSettings, processes: Processes
) -> None:
    halted = 2
    producer = Producer(kafka.client_config())
    producer.produce(kafka.topics.changelog, b"damaged", b"acme:key", partition=halted)
    assert producer.flush(120) == 0
    ports = free_ports(2)
    start_processor(processes, kafka, "w1", api_port=str(ports[0]))

    def offsets(port: int) -> int:
        return sum(name.startswith("next_offset{") for name in page_of(port))

    wait_until(lambda: offsets(ports[0]) == 3, 40, "one worker has all partitions, but the halted one, open")
    wait_until(lambda: get(f"http://127.0.0.1:{ports[0]}/readyz").status == 200, 20, "the worker is ready all the same")
    assert 'partitions_halted{reason="changelog_unreadable"}' in page_of(ports[0])
    start_processor(processes, kafka, "w2", api_port=str(ports[1]))
    wait_until(lambda: page_of(ports[1]).get("partitions_owned") == 2, 60, "the other worker has its share")
    wait_until(
        lambda: {offsets(port) for port in ports} == {1, 2}, 30, "each open partition has its series at one worker"
    )
