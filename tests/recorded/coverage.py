"""What a recording must hold: every transition and every refusal of the processor, often enough."""

from collections.abc import Mapping
from typing import get_args

from sessionary.schemas.types import RefusalReason
from tests.support.values import REASONS_OF_NO_SCRIPT

COUNT_MIN = 20
TRANSITIONS = tuple(f"T{n:02}" for n in range(1, 15))
# No path of the processor gives these: the default for readers of a later symbol, the refusal of a
# row by a sink, and what no script of a recording leads to.
NOT_OF_PROCESSOR = frozenset({"UNKNOWN", "bad_row"}) | REASONS_OF_NO_SCRIPT
REASONS = tuple(reason for reason in get_args(RefusalReason) if reason not in NOT_OF_PROCESSOR)


def too_rare(transitions: Mapping[str, int], reasons: Mapping[str, int]) -> list[str]:
    """Return what came less than `COUNT_MIN` times, and how often it came."""
    counts = [(name, transitions.get(name, 0)) for name in TRANSITIONS]
    counts += [(name, reasons.get(name, 0)) for name in REASONS]
    return [f"{name}: {count}" for name, count in counts if count < COUNT_MIN]


__all__ = ["COUNT_MIN", "NOT_OF_PROCESSOR", "REASONS", "TRANSITIONS", "too_rare"]
