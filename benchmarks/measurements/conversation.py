"""(n) What a conversation of 200 turns takes whose context grows, as a part of its plain size.

The plain size is that of the whole context after each turn. In ClickHouse: the bytes on disk
of the table of events, once its parts are merged. In the changelog: keys and values of its records,
each event in a transaction of its own; and what compaction leaves of them.
"""

from collections.abc import Sequence

from benchmarks.bench import Bench
from benchmarks.harness.stack import running_stack
from benchmarks.results import Result, Target
from benchmarks.workload.conversation import Conversation, hold_conversation
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import migrate
from tests.core.store_rig import StoreRig
from tests.support.memory_rows import insert_memory

TURNS, TURNS_QUICK = 200, 20
RATIO_MAX = 0.2
_ON_DISK = (
    "SELECT sum(bytes_on_disk) AS bytes FROM system.parts "
    "WHERE database = currentDatabase() AND table = 'history' AND active"
)


def table_ratio(clickhouse: ClickHouseSettings, talk: Conversation) -> float:
    """Insert a conversation into migrated, empty tables; return what part of its size it takes."""
    insert_memory(clickhouse, talk.memory)
    client = ClickHouseClient(clickhouse)
    client.execute("OPTIMIZE TABLE history FINAL")
    return float(client.fetch_one(_ON_DISK)["bytes"]) / talk.plain_bytes


def changelog_ratios(talk: Conversation) -> tuple[float, float]:
    """Return what part of its size a conversation's changelog takes: compacted, and as written."""
    rig = StoreRig()
    for record in talk.records:
        rig.fold_records([record])
    compacted, written = (
        sum(len(entry.key) + len(entry.value or b"") for entry in entries)
        for entries in (rig.compacted_changelog(), rig.changelog)
    )
    return compacted / talk.plain_bytes, written / talk.plain_bytes


def run(bench: Bench) -> list[Result]:
    """Measure the sizes; each run has other texts."""
    turns = bench.event_count(TURNS, TURNS_QUICK)
    results: list[Result] = []
    with running_stack(bench, with_broker=False) as stack:
        for with_text, name in ((False, "context of messages"), (True, "context as text")):

            def measure(number: int, with_text: bool = with_text) -> tuple[float, float, float, int]:
                talk = hold_conversation(turns, bench.options.seed + number, with_text=with_text)
                clickhouse = stack.new_database()
                migrate.apply_migrations(clickhouse)
                return table_ratio(clickhouse, talk), *changelog_ratios(talk), talk.plain_bytes

            tables, compacted, written, plain = zip(*bench.repeat(name, measure), strict=True)
            target = Target("<=", RATIO_MAX)
            results += [
                Result(f"{name}, in ClickHouse / plain", "ratio", tables, target, _notes(turns, plain[0])),
                Result(f"{name}, in the changelog / plain", "ratio", compacted, target),
                Result(f"{name}, before compaction / plain", "ratio", written, None if with_text else target),
            ]
    return results


def _notes(turns: int, plain_bytes: int) -> Sequence[str]:
    return (
        f"{turns} turns, a snapshot after each; plain: {plain_bytes:,} bytes; the changelog's are not compressed",
        "context as text: the changelog has the whole text with each snapshot, until Kafka compacts it",
    )
