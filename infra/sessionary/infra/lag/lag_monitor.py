"""Takes a sample and tracks it: what the commands and the exporter use."""

import time
from typing import NamedTuple

from sessionary.infra.lag.cluster_sampler import ClusterSampler
from sessionary.infra.lag.first_records import FirstRecordReader
from sessionary.infra.lag.lag_tracker import WINDOW_S, LagTracker, PartitionLag
from sessionary.schemas.settings import KafkaSettings

_ASK_S = 3.0
_READ_S = 0.5


class LagReport(NamedTuple):
    """The lags at `at_s`, seconds since the epoch; the sample took `took_s`."""

    at_s: float
    took_s: float
    partitions: tuple[PartitionLag, ...]


class LagMonitor:
    """Observes the groups of a pipeline. For one thread; close it at the end."""

    def __init__(self, settings: KafkaSettings, window_s: float = WINDOW_S, idle_s: float = 0.0) -> None:
        """Connect to nothing yet. States and rates are those of the last `window_s`.

        `idle_s`: for how long the sinks let ticks and heartbeats wait (`sink_idle_seconds`).
        """
        self._sampler = ClusterSampler(settings)
        self._reader = FirstRecordReader(settings)
        self._tracker = LagTracker(window_s, idle_s)

    def take_report(self, read_s: float = _READ_S) -> LagReport:
        """Sample, and return the lags. Raises `Unavailable` if the broker is away.

        Blocks: some 0.2 s for 1,000 partitions. A broker that does not answer is given up after
        4 s. First records are read for `read_s` at most: of partitions that do not answer in this
        time, the time lag is unknown, and the next report goes on with them.
        """
        began_s = time.monotonic()
        sample = self._sampler.take_sample(_ASK_S)
        log_ends = {place: log.end for place, log in sample.logs.items()}
        first_records = self._reader.read_first(sample.unread_places(), log_ends, read_s)
        partitions = self._tracker.track_sample(sample._replace(first_records=first_records))
        return LagReport(sample.at_s, time.monotonic() - began_s, tuple(partitions))

    def close(self) -> None:
        """Disconnect, in the background."""
        self._sampler.close()
        self._reader.close()
