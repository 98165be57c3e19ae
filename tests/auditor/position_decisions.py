"""What the position records say was decided, and the audit records that contradict."""

from collections import defaultdict
from collections.abc import Iterator

from tests.auditor.decoding import Row, microseconds
from tests.auditor.evidence import Evidence

_KEPT = 8


def find_contradictions(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each position with other decisions than the audit trail's last."""
    audited: dict[int, list[tuple[int, int, Row]]] = defaultdict(list)
    for _, line in evidence.outputs["audit"]:
        if line["kind"] == "decision" and line["event_type"] != "rules_announced":
            reported: Row = {
                "event_type": line["event_type"],
                "at_offset": line["source_offset"],
                "first_offset": line["gap_first"],
                "last_offset": line["gap_last"],
                "clock_ms": microseconds(line["appended_at"]) // 1_000,
                "principal": line["actor"],
            }
            audited[line["source_partition"]].append((line["batch_number"], line["source_n"], reported))
    for partition, known in evidence.decided.items():
        trail = [reported for _, _, reported in sorted(audited[partition], key=lambda each: each[:2])][-_KEPT:]
        if known != trail:
            yield f"the position of partition {partition} has the decisions {known}, its audit trail {trail}"
