"""`sessionary topics apply`: it changes what it says, or refuses and prints how."""

import json
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not by the names of its __all__
    AdminClient,
    ConfigResource,
    ResourceType,
)

from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import COMMAND
from tests.integration.test_three_brokers import ThreeBrokers
from tests.support.kafka_tools import REASSIGN, run_tool
from tests.support.pipelines import environment, new_pipeline
from tests.support.waiting import wait_until


def apply_by_command(kafka: KafkaSettings, *options: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, output and messages."""
    argv = [COMMAND, "topics", "apply", *options]
    done = subprocess.run(argv, env=environment(kafka), capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def read_needed(kafka: KafkaSettings) -> set[str | None]:
    """Return the topics' `min.insync.replicas`."""
    admin = AdminClient(kafka.client_config())
    answers = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in kafka.topics])
    return {answer.result(60)["min.insync.replicas"].value for answer in answers.values()}


def test_more_replicas_than_brokers_are_refused_and_change_nothing(kafka: KafkaSettings) -> None:
    code, output, messages = apply_by_command(kafka, "--replication-factor", "3")
    assert (code, output) == (5, "")
    assert "replication factor 3 needs as many brokers; 1 are there" in messages
    assert read_needed(kafka) == {"1"}
    code, output, messages = apply_by_command(kafka)
    assert (code, output, messages) == (0, "", "all topics are up to date, with replication factor 1\n")


def test_kafkas_own_tool_takes_what_is_printed_and_the_next_run_completes_it(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    brokers = ThreeBrokers(tmp_path / "brokers", request.node.name)
    try:
        brokers.start()  # its own topics have three replicas
        kafka = new_pipeline(brokers.kafka.bootstrap_servers)  # one replica, and the brokers' default of two in sync
        code, output, messages = apply_by_command(kafka)
        assert (code, output.count("min.insync.replicas = 1"), read_needed(kafka)) == (0, 11, {"1"})
        assert "the cluster has 3 brokers, but a partition has 1 replica(s)" in messages
        plan = tmp_path / "reassignment.json"
        code, output, messages = apply_by_command(kafka, "--replication-factor", "3")
        assert (code, len(json.loads(output)["partitions"])) == (5, 11 * kafka.partitions)
        assert "nothing was changed: 11 topics" in messages
        assert read_needed(kafka) == {"1"}
        plan.write_text(output)
        move = (REASSIGN, kafka.bootstrap_servers, "--reassignment-json-file", str(plan))
        assert "Successfully started partition reassignments" in run_tool(*move, "--execute")
        wait_until(lambda: "still in progress" not in run_tool(*move, "--verify"), 120, "the replicas")
        code, output, messages = apply_by_command(kafka, "--replication-factor", "3")
        assert (code, output.count("min.insync.replicas = 2"), read_needed(kafka)) == (0, 11, {"2"})
        assert apply_by_command(kafka) == (0, "", "all topics are up to date, with replication factor 3\n")
        # Without the option, new topics get as many replicas as there are brokers, at most three.
        other = kafka.model_copy(update={"topic_prefix": "other"})
        code, output, _ = apply_by_command(other)
        assert (code, output.count("created with 4 partitions, replication factor 3")) == (0, 11)
    finally:
        brokers.stop()
