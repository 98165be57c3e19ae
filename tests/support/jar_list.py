"""The list of the broker's jars, resolved from Maven's POMs.

`python -m tests.support.jar_list 4.2.2` redraws it for that version of Kafka.
"""

import sys
from pathlib import Path

import jgo

ROOT = Path(__file__).parents[2]
JAR_LIST = ROOT / "infra" / "sessionary" / "infra" / "local" / "kafka" / "jars.txt"
# Kafka has no slf4j binding of its own; without one the broker's log stays empty.
_LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"


def resolve_jars(kafka_version: str) -> list[str]:
    """Return `group:artifact:version` of each jar, sorted. Reads POMs from the network or cache."""
    # Two resolutions, because log4j's parent POM manages kafka-clients to 3.8.0: a joint resolution
    # would give the broker that version. Kafka's own versions win.
    kafka = _resolve_endpoint(f"org.apache.kafka:kafka_2.13:{kafka_version}")
    return sorted(":".join((*name, version)) for name, version in {**_resolve_endpoint(_LOG_BINDING), **kafka}.items())


def _resolve_endpoint(endpoint: str) -> dict[tuple[str, str], str]:
    return {(jar.groupId, jar.artifactId): jar.version for jar in jgo.resolve(endpoint) if jar.packaging == "jar"}


if __name__ == "__main__":
    JAR_LIST.write_text("".join(f"{line}\n" for line in resolve_jars(sys.argv[1])), "utf-8")
    sys.stdout.write(f"wrote {JAR_LIST.relative_to(ROOT)}\n")
