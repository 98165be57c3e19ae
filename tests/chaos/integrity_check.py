"""Asks the product's own check of ClickHouse's rows, and compares its answer with the auditor's.

Both name a table and a partition. Rows of acknowledgements are compared by the auditor alone: they
may be lost on their way to Kafka, so nothing says how many there must be.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from sessionary.infra.kpi.integrity import table_of_fault
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.integrity.landed_ends import find_end_faults
from sessionary.sinks.integrity.topic_counts import compare_topics
from sessionary.sinks.settings import SinkSettings
from tests.auditor.checks import CHECKS, AuditInput, Difference, check_clickhouse
from tests.auditor.evidence import query_rows
from tests.auditor.stored_rows import find_row_faults

Fault = dict[str, Any]
Place = tuple[str, int]  # a table, and a partition of its topic
_SHOWN = 5


class IntegrityAnswer(NamedTuple):
    """The faults, and sentences on what was not compared. What a topic has deleted needs not be."""

    faults: list[Fault]
    notes: list[str]


def ask_integrity(kafka: KafkaSettings, clickhouse: ClickHouseSettings) -> IntegrityAnswer:
    """Return what `sessionary integrity check` finds once all sinks have written everything."""
    settings = SinkSettings.model_validate({**kafka.model_dump(), **clickhouse.model_dump()})
    url = f"{clickhouse.clickhouse_url}/?database={clickhouse.clickhouse_database}"
    times = "from='1970-01-01 00:00:00', to='2106-01-01 00:00:00'"
    faults = query_rows(url, f"SELECT * FROM {clickhouse.between_database}.v_integrity_between({times}, late_s=0)")
    fetch_rows = partial(query_rows, url)
    compared = compare_topics(settings, fetch_rows, late_s=0)
    in_kafka = (*find_end_faults(settings, fetch_rows), *compared.faults)
    return IntegrityAnswer(faults + [fault._asdict() for fault in in_kafka], compared.notes)


def find_uncompared(notes: Iterable[str]) -> list[Difference]:
    """Return a difference for each sentence on what was not compared, but for old records."""
    return [Difference("integrity", note) for note in notes if "older records may be deleted" not in note]


def places_of(faults: Iterable[Fault]) -> set[Place]:
    """Return the places that faults name; those of a session's audit trail name no partition."""
    return {
        (table_of_fault(fault["fault"]), int(fault["partition"])) for fault in faults if fault["partition"] is not None
    }


def find_disagreements(inputs: AuditInput, faults: Sequence[Fault]) -> list[Difference]:
    """Return a difference for each place in which only one of auditor and product finds a fault.

    A fault of which only the product tells is none if the auditor finds Kafka itself wrong.
    """
    audited = {(fault.table, fault.partition) for fault in find_row_faults(inputs.evidence)}
    reported, tables = places_of(faults), {table for table, _ in audited}
    found = [
        Difference("integrity", f"the auditor finds wrong rows of partition {number} in {table}, v_integrity none")
        for table, number in sorted(audited - reported)
    ]
    unfounded = [
        fault
        for fault in faults
        if (
            table_of_fault(fault["fault"]) not in tables if fault["partition"] is None else places_of([fault]) - audited
        )
    ]
    if unfounded and not _is_kafka_wrong(inputs):
        shown = "; ".join(str(fault) for fault in unfounded[:_SHOWN])
        text = f"v_integrity has {len(unfounded)} faults where the auditor has none: {shown}"
        found.append(Difference("integrity", text))
    return found


def _is_kafka_wrong(inputs: AuditInput) -> bool:
    return any(True for check in CHECKS if check is not check_clickhouse for _ in check(inputs))
