"""Loses rows of the audited stack on purpose: auditor and product must both find each loss."""

import random
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Producer

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import Tick
from sessionary.sinks.settings import SinkSettings
from tests.auditor.checks import Difference
from tests.auditor.evidence import Evidence, read_rows, read_topic
from tests.auditor.stored_rows import find_row_faults
from tests.chaos.integrity_check import Fault, Place, ask_integrity, places_of
from tests.chaos.stack import DATABASE, PARTITIONS, ChaosStack
from tests.support.losses import commit_offset, delete_rows, drop_part

# No transaction has judged the last records of history: of these only the very last is known.
_COUNTED = ("audit", "rejected", "batches")


def show_losses(stack: ChaosStack, evidence: Evidence, seed: int, say: Callable[[str], None]) -> list[Difference]:
    """Lose a row, a part and unread records; return a difference for each loss that is not seen.

    Processors and sinks must have finished; the sinks are stopped. The seed chooses what is lost.
    """
    stack.sinks.stop()
    losses = _Losses(stack, evidence, random.Random(seed))
    differences: list[Difference] = []
    for what, lose in (
        ("a row", losses.lose_row),
        ("a part", losses.lose_part),
        ("unread records", losses.lose_unread_records),
    ):
        lost = lose()
        say(f"lost {what} of {' and '.join(f'{table} {partition}' for table, partition in sorted(lost))}")
        faults, _ = ask_integrity(stack.kafka, stack.clickhouse)  # its notes are those of the audit before
        differences += find_unseen(what, lost, losses.read_evidence(), faults)
    return differences


def find_unseen(what: str, lost: Iterable[Place], evidence: Evidence, faults: Sequence[Fault]) -> list[Difference]:
    """Return a difference for each place of a loss that auditor or product does not name."""
    named = {
        "the auditor": {(fault.table, fault.partition) for fault in find_row_faults(evidence)},
        "v_integrity": places_of(faults),
    }
    return [
        Difference("integrity", f"{what} of partition {partition} in {table} was lost, and {who} does not see it")
        for table, partition in sorted(lost)
        for who, places in named.items()
        if (table, partition) not in places
    ]


class _Losses:
    def __init__(self, stack: ChaosStack, evidence: Evidence, rng: random.Random) -> None:
        self._stack, self._evidence, self._rng = stack, evidence, rng

    def read_evidence(self) -> Evidence:
        """Return the evidence with the rows that are there now."""
        return self._evidence._replace(rows=read_rows(self._stack.clickhouse_url, DATABASE))

    def lose_row(self) -> set[Place]:
        table = self._rng.choice(self._filled_tables())
        row = self._rng.choice(self._evidence.rows[table])
        place = f"src_partition = {row['partition']} AND src_offset = {row['offset']}"
        delete_rows(self._stack.clickhouse, table, place)
        return {(table, row["partition"])}

    def lose_part(self) -> set[Place]:
        table = self._rng.choice(self._filled_tables())
        return {(table, partition) for partition in drop_part(self._stack.clickhouse, table)}

    def lose_unread_records(self) -> set[Place]:
        """Append ticks, and move the offset of the history's sink behind them."""
        stack, partition = self._stack, self._rng.randrange(PARTITIONS)
        producer = Producer(stack.kafka.client_config())
        for _ in range(3):
            producer.produce(stack.kafka.topics.events, encode_record(Tick("w1")), partition=partition)
        producer.flush(20)
        commit_offset(SinkSettings.model_validate(stack.kafka.model_dump()), "history", partition)
        self._evidence = self._evidence._replace(log=read_topic(stack.servers_address, stack.kafka.topics.events))
        return {("history", partition)}

    def _filled_tables(self) -> list[str]:
        return [table for table in _COUNTED if self._evidence.rows[table]]
