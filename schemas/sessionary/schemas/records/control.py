"""Records of processors on the events topic, beside the events of clients."""

from typing import NamedTuple

from sessionary.schemas.types import RuleSet


class Tick(NamedTuple):
    """Says on the events topic that time has passed. The broker stamps it.

    Attributes:
        instance: The processor that sent it.
    """

    instance: str


class RulesActivation(NamedTuple):
    """Says on the events topic that a partition is judged by other rules from this record on.

    It counts only if the partition's owner announced it in the changelog.

    The first attributes are those of `RuleSet`.

    Attributes:
        principal: Who activated them.
        instance: The processor that sent it.
    """

    version: int
    row_bytes_max: int
    finished_run_days: int
    output_bytes_max: int
    rejected_bytes_max: int
    quotas: bool
    session_quotas: bool
    resume_ms: int
    token_quotas: bool
    principal: str
    instance: str

    @property
    def rules(self) -> RuleSet:
        """What begins."""
        return RuleSet._make(self[: len(RuleSet._fields)])
