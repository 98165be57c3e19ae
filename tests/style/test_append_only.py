"""No path of the product changes or deletes an event, and few may write one."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.style.project import PACKAGES, ROOT, tracked_files

# Kafka's calls, and SQL that changes rows. A TTL is the retention; the journal is the demo's own.
_CHANGES = re.compile(
    r"\bdelete_records\b|\bdelete_topics\b|\bTRUNCATE\s|\bDELETE\s+FROM\s+(?!demo_journal)\w"
    r"|\bALTER\s+TABLE\s+\S+\s+DELETE\b|\bDROP\s+(?:PART|TABLE|DATABASE)\b|\bREPLACE\s+PARTITION\b"
)
_UPDATE = re.compile(r"\bUPDATE\s+(\w+\s*=.*?)\s+WHERE\b", re.DOTALL)
WRITERS = {
    "producers/sessionary/producers/delivery/kafka_producer.py": "the client",
    "stream_processors/sessionary/stream_processors/runtime/ticker.py": "ticks, and records with which rules begin",
    "stream_processors/sessionary/stream_processors/runtime/transaction.py": "the processor's own topics",
    "stream_processors/sessionary/stream_processors/runtime/decisions.py": "ticks: for the time, and after a lost end",
    "stream_processors/sessionary/stream_processors/api/operators/session_events.py": "an event that a person asks for",
    "stream_processors/sessionary/stream_processors/quotas/verdict_sender.py": "verdicts on claims to quotas",
    "sinks/sessionary/sinks/runtime/block_writer.py": "dead letters",
    "infra/sessionary/infra/cli/commands/rejected.py": "a rejected record once more, as it was",
    "infra/sessionary/infra/demo/plan_runner.py": "the demo's broken records",
    "infra/sessionary/infra/cli/commands/doctor.py": "nothing: the broker is the driver's own mock",
}


def _product_files() -> Iterator[tuple[str, str]]:
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(PACKAGES) and Path(name).suffix in (".py", ".sql"):
            yield name, path.read_text("utf-8")


def test_nothing_changes_or_deletes_what_was_written() -> None:
    found = [f"{name}: {match[0]}" for name, text in _product_files() for match in _CHANGES.finditer(text)]
    assert found == []


def test_an_update_of_a_table_only_stores_what_the_server_made_of_a_row() -> None:
    """A column with a DEFAULT is made of the payload, and must be stored before that expires."""
    updates = [match[1] for _, text in _product_files() for match in _UPDATE.finditer(text)]
    stored = [assignment.split() for update in updates for assignment in update.split(",")]
    assert [each for each in stored if each != [each[0], "=", each[0]]] == []
    assert _UPDATE.findall("ALTER TABLE t UPDATE a = a, b = 1 WHERE c") == ["a = a, b = 1"]


def test_records_are_produced_in_few_places_which_are_named() -> None:
    writers = {name for name, text in _product_files() if re.search(r"(?<!\w)_?producer\.produce\b", text)}
    assert writers == WRITERS.keys()
