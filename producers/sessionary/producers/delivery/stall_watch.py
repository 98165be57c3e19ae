"""Finds out from librdkafka's statistics that a producer is stuck; pure.

librdkafka was seen to find no broker for minutes after one had been killed, without an error. A
new producer finds one at once.
"""

import json
from typing import NamedTuple

STATISTICS_MS = 3_000
# A new producer tries after so long without an acknowledgement, then after twice as long each time,
# as the broker may really be down.
_STALL_S, _STALL_S_MAX = 15.0, 240.0
_WAITING = ("msgq_cnt", "xmit_msgq_cnt", "msgs_inflight")


class _Progress(NamedTuple):
    """What a partition last acknowledged, and since when that has not changed."""

    acknowledged: int
    since_s: float


class StallWatch:
    """Follows each partition of a topic: heartbeats count as events do.

    A partition is stuck if librdkafka holds records for it and none was acknowledged for 15 s. The
    records whose partition librdkafka does not know yet count as one more partition.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._patience_s = _STALL_S
        self._progress: dict[str, _Progress] = {}
        self._stuck: set[str] = set()  # since the last time that nothing was

    def find_stall(self, statistics: str, now_s: float) -> float:
        """Return for how many seconds a partition has been stuck, or 0 if none is for too long.

        Args:
            statistics: librdkafka's, as JSON.
            now_s: The time in seconds, of a clock that never goes back.

        Returns:
            The seconds. The next stall takes twice as long to be one, until all is well again.
        """
        partitions = json.loads(statistics).get("topics", {}).get(self._topic, {}).get("partitions", {})
        stalled_s = 0.0
        for name, found in partitions.items():
            acknowledged, waiting = found["acked_msgid"], any(found[count] for count in _WAITING)
            last = self._progress.get(name)
            if last is None or not waiting or acknowledged != last.acknowledged:
                self._progress[name] = _Progress(acknowledged, now_s)
                if last is not None and (not waiting or acknowledged > last.acknowledged):
                    self._stuck.discard(name)
            elif now_s - last.since_s >= self._patience_s:
                stalled_s = max(stalled_s, now_s - last.since_s)
                self._stuck.add(name)
        if not self._stuck:
            self._patience_s = _STALL_S
        if stalled_s:
            self._progress.clear()  # a new producer follows
            self._patience_s = min(2 * self._patience_s, _STALL_S_MAX)
        return stalled_s
