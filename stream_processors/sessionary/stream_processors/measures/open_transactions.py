"""Tells which partitions of the events topic an open transaction of another producer holds up.

Processors and sinks read committed records only. They stop at the last stable offset, where the
oldest open transaction begins, and go on once it is committed or aborted. No client and no worker
writes events in transactions, so what is open for seconds is a foreign producer's, or abandoned.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sessionary.schemas.kafka.log_progress import LogEnd
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.stream_processors.metrics import Metrics

_log = role_logger(__name__)


class LogEnds(NamedTuple):
    """The two ends of a partition's log: for readers of committed records, and for all others."""

    stable: int  # the last stable offset
    high: int  # the high watermark


def join_ends(high: Mapping[int, LogEnd], stable: Mapping[int, LogEnd]) -> dict[int, LogEnds]:
    """Return both ends of the partitions that answered both questions.

    The stable ends must have been asked for after the high ones.
    """
    return {number: LogEnds(stable[number].offset, high[number].offset) for number in high.keys() & stable.keys()}


class OpenTransactionWatch:
    """Reports a partition that two observations in a row find held up at the same offset."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seen: dict[int, int] = {}  # where held partitions stood at the last observation
        self._reported: dict[int, int] = {}

    def observe(self, ends: Mapping[int, LogEnds]) -> None:
        """Take the ends of the owned partitions; a partition that is left out starts again."""
        held = {partition: end for partition, end in ends.items() if end.stable < end.high}
        self._metrics.held_records.clear()
        for partition, end in sorted(held.items()):
            if self._seen.get(partition) != end.stable:
                continue
            self._metrics.held_records.labels(str(partition)).set(end.high - end.stable)
            if self._reported.get(partition) != end.stable:
                self._reported[partition] = end.stable
                _log.warning(
                    "partition %(partition)d is held up at offset %(offset)d: a producer's transaction is open, and "
                    "%(held_records)d records wait for its end; `kafka-transactions.sh describe-producers` names it",
                    held_records=end.high - end.stable,
                    partition=partition,
                    offset=end.stable,
                )
        for partition in self._reported.keys() & ends.keys() - held.keys():
            offset = self._reported.pop(partition)
            _log.info(
                "partition %(partition)d goes on: the transaction at offset %(offset)d ended",
                partition=partition,
                offset=offset,
            )
        self._seen = {partition: end.stable for partition, end in held.items()}
