"""A stack of three brokers that stays up, by its command."""

import os
import subprocess
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not by the names of its __all__
    AdminClient,
    ConfigResource,
    ResourceType,
)

from sessionary.infra.environment import read_environment
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import COMMAND
from tests.support.terminal import TerminalCommand
from tests.support.waiting import wait_until


def test_three_brokers_hold_three_replicas_and_come_back_over_the_same_folder(tmp_path: Path) -> None:
    for option in ("--brokers 3", ""):
        up = TerminalCommand(f"{COMMAND} up --data data {option}", tmp_path, os.environ)
        try:
            wait_until(lambda up=up: up.has_ended or "Ctrl-C stops" in up.text, 600, "the stack's summary")  # type: ignore[misc]
            assert "replication factor 3, min.insync.replicas 2" in up.text
            _check_replicas(KafkaSettings.from_env(read_environment(tmp_path / "data")))
            assert up.interrupt() == 0
        finally:
            up.end()
    argv = [COMMAND, "up", "--data", str(tmp_path / "data"), "--brokers", "1"]
    other = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert (other.returncode, other.stderr.count("\n")) == (6, 1)
    assert "was made for 3 brokers, not for 1" in other.stderr


def _check_replicas(kafka: KafkaSettings) -> None:
    """Check the pipeline's topics, and Kafka's own as far as they exist."""
    admin = AdminClient(kafka.client_config())
    topics = admin.list_topics(timeout=60).topics
    assert set(kafka.topics) <= topics.keys()
    assert {len(place.replicas) for topic in topics.values() for place in topic.partitions.values()} == {3}
    configs = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in topics])
    assert {answer.result(60)["min.insync.replicas"].value for answer in configs.values()} == {"2"}
