"""The sink processes of a pipeline under measurement."""

import sys
from collections.abc import Iterable, Mapping

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

_COMMAND = (sys.executable, "-m", "sessionary.infra.cli")
_STOP_GRACE_S = 20.0
_MIGRATE_S = 60.0


def start_sinks(
    stack: Stack,
    kafka: KafkaSettings,
    clickhouse: ClickHouseSettings,
    kinds: Mapping[str, str] = PROCESSES,
    python_path: str | None = None,
) -> dict[str, Child]:
    """Migrate the database and start a sink process for each name; return them by name.

    `kinds`: the kind of sink by name. `python_path`: where the processes find the packages first;
    None: those that are installed. The database's name keeps the consumer groups of different runs
    apart. Raises `RuntimeError` if the migration fails.
    """
    env = environment(kafka, clickhouse, pipeline=clickhouse.clickhouse_database)
    if python_path is not None:
        env["PYTHONPATH"] = python_path
    migrated = stack.run([*_COMMAND, "db", "migrate"], env=env, name="migrate")
    if not migrated.wait(_MIGRATE_S) or migrated.exit_code != 0:
        raise RuntimeError(f"the migration ended with {migrated.exit_code}:\n{migrated.log.read_text()[-2_000:]}")
    return {
        name: stack.run([*_COMMAND, "serve", "sink", kind], env=env, name=f"sink-{name}")
        for name, kind in kinds.items()
    }


def stop_sinks(children: Iterable[Child]) -> None:
    """Stop the processes, one after another. Blocks."""
    for child in children:
        child.stop(_STOP_GRACE_S)
