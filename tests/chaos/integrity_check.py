"""Asks the product's own check of ClickHouse's rows, and compares its answer with the auditor's."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sessionary.sinks.integrity.landed_ends import find_end_faults
from sessionary.sinks.settings import SinkSettings
from tests.auditor.checks import AuditInput, Difference, check_clickhouse, run_checks
from tests.auditor.evidence import query_rows
from tests.chaos.stack import DATABASE, ChaosStack

Fault = dict[str, Any]
_SHOWN = 5


def ask_integrity(stack: ChaosStack) -> list[Fault]:
    """Return what `sessionary integrity` finds once all sinks have written everything."""
    settings = SinkSettings.model_validate(
        {**stack.kafka.model_dump(), "clickhouse_url": stack.clickhouse_url, "clickhouse_database": DATABASE}
    )
    url = f"{stack.clickhouse_url}/?database={DATABASE}"
    times = "from='1970-01-01 00:00:00', to='2106-01-01 00:00:00'"
    faults = query_rows(url, f"SELECT * FROM v_integrity_between({times}, late_s=0)")
    return faults + [fault._asdict() for fault in find_end_faults(settings, partial(query_rows, url))]


def find_disagreements(inputs: AuditInput, faults: Sequence[Fault]) -> list[Difference]:
    """Return a difference if only one of auditor and product finds wrong rows."""
    audited = list(check_clickhouse(inputs))
    if audited and not faults:
        return [Difference("integrity", f"the auditor found {len(audited)} wrong rows, v_integrity none")]
    if faults and not audited and not run_checks(inputs):
        shown = "; ".join(str(fault) for fault in faults[:_SHOWN])
        return [Difference("integrity", f"v_integrity has {len(faults)} faults, the auditor none: {shown}")]
    return []


__all__ = ["Fault", "ask_integrity", "find_disagreements"]
