"""The sink processes of a pipeline under measurement."""

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness.stack import Stack, environment
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings

# A sink waits for its own inserts, and nearly all rows are history: two processes share it.
PROCESSES = {
    "audit": "audit",
    "history-1": "history",
    "history-2": "history",
    "rejected": "rejected",
    "batches": "batches",
}

_COMMAND = str(Path(sys.executable).parent / "sessionary")
_STOP_GRACE_S = 20.0
_MIGRATE_S = 60.0


def start_sinks(stack: Stack, kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> dict[str, Child]:
    """Migrate the database and start the `PROCESSES`; return them by name.

    The database's name keeps the consumer groups of different runs apart. Raises `RuntimeError` if
    the migration fails.
    """
    env = environment(kafka, clickhouse, pipeline=clickhouse.clickhouse_database)
    migrated = stack.run([_COMMAND, "db", "migrate"], env=env, name="migrate")
    if not migrated.wait(_MIGRATE_S) or migrated.exit_code != 0:
        raise RuntimeError(f"the migration ended with {migrated.exit_code}:\n{migrated.log.read_text()[-2_000:]}")
    return {name: stack.run([_COMMAND, "sink", kind], env=env, name=f"sink-{name}") for name, kind in PROCESSES.items()}


def stop_sinks(children: Iterable[Child]) -> None:
    """Stop the processes, one after another. Blocks."""
    for child in children:
        child.stop(_STOP_GRACE_S)


__all__ = ["PROCESSES", "start_sinks", "stop_sinks"]
