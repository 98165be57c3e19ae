"""The repair of a clock that leapt ahead and back, which a processor decides on by itself.

A partition that is halted by a stamp far ahead of the worker's clock never goes on by
waiting: once that clock has caught up, the stamps would still move the partition's clock past
limits that have not ended. It stays halted until broker and worker agree about the time again. Then
the stamp is refuted by the broker that made it, and the processor does what an operator would do:
it sets the partition's clock to the broker's time, as a decision in the audit trail. No limit ends
early by that, whichever of the two clocks was wrong before.

The clock is only set forward. If broker and worker agree on a time before the partition's own, both
may have been set back, and the stamps be right; an operator knows more. After the time of the
partition's clock has passed again, it makes no difference.
"""

from typing import Final

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import ClockSetting
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.decisions.broker_time import CLOCKS_APART_S_MAX, BrokerTime

PRINCIPAL: Final = "processor"  # in the audit trail


def waits_for_repair(fault: Halted) -> bool:
    """Return whether a partition that is halted by `fault` goes on only by a clock repair."""
    return fault.reason == "clock_ahead"


def with_way_out(fault: Halted, partition: int) -> Halted:
    """Return a fault as an operator is told it: a stamp ahead of the clock with its ways out."""
    if not waits_for_repair(fault):
        return fault
    way_out = (
        f"The partition stays halted until both clocks agree again within {CLOCKS_APART_S_MAX:g} s. Then the processor "
        "sets the partition's clock to the broker's time, within half a minute; `sessionary partition repair-clock "
        f"{partition}` does it at once. No deadline fires early. If the stamp is right, because this worker's clock "
        f"was behind, `sessionary partition retry {partition}` goes on without a repair"
    )
    return Halted(fault.reason, f"{fault.detail}. {way_out}", None, fault.offset, fault.key)


def find_own_repair(fault: Halted, position: Position, broker: BrokerTime) -> ClockSetting | None:
    """Return how a processor sets the clock of a partition that waits for it; None: not yet.

    `position`: where the partition is halted. `broker`: its leader's time, asked for just now.
    """
    if abs(broker.ahead_s) > CLOCKS_APART_S_MAX or broker.stamp_ms < position.clock_ms:
        return None
    reason = (
        f"the stamp of offset {fault.offset} was far ahead of the worker's clock, and broker and worker agree again "
        f"({broker.ahead_s:+,.1f} s)"
    )
    return ClockSetting(broker.stamp_ms, broker.offset, reason, PRINCIPAL)
