"""What the acknowledgements on `batches` say of the transactions before them, and who contradicts.

An acknowledgement is written outside of transactions: it may be lost, or come twice.
"""

from collections.abc import Iterator

from tests.auditor.evidence import Evidence


def find_contradictions(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each acknowledgement that does not fit the transactions."""
    batches = {(entry.partition, batch["number"]): (entry, batch) for entry, batch in evidence.outputs["batches"]}
    times = {
        (partition, number - 1): batch["previous_acknowledged_at"]
        for (partition, number), (_, batch) in batches.items()
        if batch["previous_acknowledged_at"] is not None
    }
    for entry, reported in evidence.acknowledgements:
        place, reported_us = (reported["partition"], reported["number"]), reported["acknowledged_at"]
        name = f"the acknowledgement at offset {entry.offset} of transaction {place[1]} of partition {place[0]}"
        found = batches.get(place)
        if found is None or entry.partition != place[0] or found[0].offset > entry.offset:
            yield f"{name} follows no such transaction"
            continue
        batch = found[1]
        if reported["instance"] != batch["instance"]:
            yield f"{name} is from {reported['instance']}, the transaction from {batch['instance']}"
        if reported_us < batch["started_at"]:
            yield f"{name} is of {reported_us}, before the transaction began ({batch['started_at']})"
        if times.setdefault(place, reported_us) != reported_us:
            yield f"{name} is of {reported_us}; another record says {times[place]}"


def missing_rows(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each acknowledgement without a row in ClickHouse, and the reverse.

    Two of one transaction become one row there.
    """
    written = {
        (entry.partition, reported["number"], reported["acknowledged_at"])
        for entry, reported in evidence.acknowledgements
    }
    stored = {
        (row["partition"], row["number"], row["acknowledged_us"]) for row in evidence.rows["batch_acknowledgements"]
    }
    for partition, number, reported_us in sorted(written ^ stored):
        has, lacks = (
            ("batches", "ClickHouse") if (partition, number, reported_us) in written else ("ClickHouse", "batches")
        )
        yield f"{has} has an acknowledgement of transaction {number} of partition {partition} that {lacks} lacks"
