"""The oldest Kafka that docs/operate/production.md names: a worker under load, and its rows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionary.infra.local.kafka import node
from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.topics import apply_topics
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration import test_processor_road, test_sinks_flow
from tests.style.project import ROOT
from tests.support.jar_list import resolve_jars
from tests.support.logs import log_folder
from tests.support.pipelines import new_pipeline
from tests.support.processes import Processes


@pytest.fixture
def oldest_kafka(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KafkaSettings]:
    """Topics on a broker of the oldest version."""
    page = (ROOT / "docs" / "operate" / "production.md").read_text("utf-8")
    found = re.search(r"^\| Kafka \| (\d+\.\d+) \|", page, re.M)
    assert found
    jars = tuple(resolve_jars(f"{found[1]}.0"))
    monkeypatch.setattr(node, "JAR_COORDINATES", jars)
    broker = LocalBroker(tmp_path / "kafka", None, log_folder() / f"{request.node.name}.broker.log")
    broker.start()
    try:
        broker.wait_ready()
        yield new_pipeline(broker.bootstrap_servers)
    finally:
        broker.stop()


def test_kill_9_under_load_loses_and_doubles_nothing_on_it(
    oldest_kafka: KafkaSettings, tables: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    assert apply_topics(oldest_kafka).changes == []
    road = test_processor_road.test_kill_9_under_load_loses_and_doubles_nothing
    road(oldest_kafka, processes, tmp_path, "rocksdb")
    flow = test_sinks_flow.test_every_record_is_one_row_and_lag_ends_at_0_behind_transaction_markers
    flow(new_pipeline(oldest_kafka.bootstrap_servers), tables)
