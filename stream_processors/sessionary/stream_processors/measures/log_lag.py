"""How far partitions are behind their logs, by the ends of the logs that were asked for; pure."""

from collections.abc import Collection, Mapping


class LogLag:
    """The ends of the logs of owned partitions, and how far these were folded.

    `folded` is always by partition: the offset below which nothing is left to fold. Times are in ms
    of the wall clock.
    """

    def __init__(self) -> None:
        self._log_ends: dict[int, int] = {}
        self._folded: dict[int, int] = {}
        self._level_ms: dict[int, float] = {}  # when a partition was last known to be at its log's end

    def observe(
        self, owned: Collection[int], folded: Mapping[int, int], log_ends: Mapping[int, int], asked_ms: float
    ) -> None:
        """Take the ends of the logs, by an answer to a question at `asked_ms`.

        `folded` was read after the answer. Partitions that are no longer owned are forgotten.
        """
        self._log_ends |= log_ends
        self._folded |= folded
        for partition, end in log_ends.items():
            if folded.get(partition, -1) >= end:
                self._level_ms[partition] = asked_ms
        for known in (self._log_ends, self._folded, self._level_ms):
            for partition in known.keys() - set(owned):
                del known[partition]

    def lag_records(self, folded: Mapping[int, int]) -> dict[int, int]:
        """Return the offsets between `folded` and the log's end.

        A partition that is not in `folded` is halted, or is opened again: it is where it was last.
        One of which that or its log's end is not known is left out.
        """
        known = self._folded | dict(folded)
        return {number: max(0, end - known[number]) for number, end in self._log_ends.items() if number in known}

    def lag_seconds(
        self,
        folded: Mapping[int, int],
        waiting_ms: Mapping[int, int],
        clocks_ms: Mapping[int, int],
        now_ms: float,
    ) -> dict[int, float]:
        """Return how long ago the first record behind `folded` was appended; 0 without one.

        `waiting_ms`: when that was, of those that are fetched. Otherwise it was not before the
        partition's clock, nor before the partition was last level with its log.
        """
        found: dict[int, float] = {}
        for number, records in self.lag_records(folded).items():
            since_ms: float | None = waiting_ms.get(number)
            if since_ms is None:
                since_ms = max(clocks_ms.get(number, 0), self._level_ms.get(number, 0)) or now_ms
            found[number] = max(0.0, now_ms - since_ms) / 1_000 if records else 0.0
        return found
