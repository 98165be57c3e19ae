"""Shared by all tests: wait for a condition, run processes, use servers, read topics."""

from tests.support.pipelines import environment, new_clickhouse, new_pipeline, remove_pipeline, run_sql
from tests.support.processes import Processes
from tests.support.reading import Stored, read_batches, read_events, read_records, read_topic
from tests.support.waiting import wait_until

__all__ = [
    "Processes",
    "Stored",
    "environment",
    "new_clickhouse",
    "new_pipeline",
    "read_batches",
    "read_events",
    "read_records",
    "read_topic",
    "remove_pipeline",
    "run_sql",
    "wait_until",
]
