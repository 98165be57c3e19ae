"""Records of processors on the events topic, beside the events of clients."""

from typing import NamedTuple


class Tick(NamedTuple):
    """Says on the events topic that time has passed. The broker stamps it.

    Attributes:
        instance: The processor that sent it.
    """

    instance: str


class RulesActivation(NamedTuple):
    """Says on the events topic that a partition is judged by other rules from this record on.

    It counts only if the partition's owner announced it in the changelog.

    Attributes:
        version: See `RuleSet`.
        row_bytes_max: See `RuleSet`.
        principal: Who activated them.
        instance: The processor that sent it.
    """

    version: int
    row_bytes_max: int
    principal: str
    instance: str


__all__ = ["RulesActivation", "Tick"]
