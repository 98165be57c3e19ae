"""Types of what was decided about a partition (`avro/common/*.avsc`)."""

from typing import NamedTuple


class ClockRepair(NamedTuple):
    """A repair of a partition's clock: an operator had it set to the broker's time.

    Attributes:
        number: From 1, by partition.
        until_offset: Records below it do not move the clock: the repair is later than they.
        clock_ms: What the clock was set to.
        shift_ms: How far it was set forward; the times of older rows move with it.
        back_ms: How far it was set back; later times of older rows become clock_ms.
    """

    number: int
    until_offset: int
    clock_ms: int
    shift_ms: int
    back_ms: int


class PartitionDecision(NamedTuple):
    """A decision about a partition: an operator's, or the processor's own."""

    event_type: str  # of the decision's audit record
    at_offset: int  # where the partition was: its audit record has the same source_offset
    first_offset: int | None  # that it is about; None if it is about none
    last_offset: int | None
    clock_ms: int  # the partition's clock after it
    principal: str
