"""Times at which the verdicts were in the log, by the processor's records of its transactions."""

from bisect import bisect_left

from sessionary.schemas.records import BatchAcknowledged, BatchRecord
from sessionary.schemas.settings import KafkaSettings
from tests.support.reading import read_records

_BatchKey = tuple[int, int]  # partition, number of the transaction


class VerdictTimes:
    """When transactions were acknowledged, by the clock of the processor's machine."""

    def __init__(self, kafka: KafkaSettings) -> None:
        """Read the batch records of a pipeline from the beginning. Blocks."""
        self._last_offsets: dict[int, list[int]] = {n: [] for n in range(kafka.partitions)}
        self._numbers: dict[int, list[int]] = {n: [] for n in range(kafka.partitions)}
        self._acknowledged_us: dict[_BatchKey, int] = {}
        for record in read_records(kafka, kafka.topics.batches):
            if isinstance(record, BatchAcknowledged):
                self._acknowledged_us[record.partition, record.number] = record.acknowledged_at
            elif isinstance(record, BatchRecord):
                self._last_offsets[record.partition].append(record.last_offset)
                self._numbers[record.partition].append(record.number)
                if record.previous_acknowledged_at is not None:
                    before = record.partition, record.number - 1
                    self._acknowledged_us[before] = record.previous_acknowledged_at

    def acknowledged_ms(self, partition: int, offset: int) -> float | None:
        """Return when the transaction that judged an event was acknowledged, ms since the epoch.

        None if the log does not have it: the event is not judged, or is in the last transaction.
        """
        place = bisect_left(self._last_offsets[partition], offset)
        if place == len(self._last_offsets[partition]):
            return None
        at_us = self._acknowledged_us.get((partition, self._numbers[partition][place]))
        return None if at_us is None else at_us / 1e3
