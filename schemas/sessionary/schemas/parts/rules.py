"""Types that schemas of rules share (`avro/common/*.avsc`)."""

from typing import NamedTuple


class RuleSet(NamedTuple):
    """The rules that a partition is judged by.

    Attributes:
        version: From 1; each version is described in ARCHITECTURE.md.
        row_bytes_max: A row's key and value; what would make it larger is refused.
        finished_run_days: For so long a run that begins by these rules can be read after its end.
        output_bytes_max: An audit record, or a request to a service; what is longer is cut.
        rejected_bytes_max: A rejected record, in the same way.
        quotas: Whether runs that begin ask for their tenant's quota.
        session_quotas: Whether sessions that are created ask for their tenant's quota.
        resume_ms: For so long after it failed a run may be resumed.
        token_quotas: Whether the quotas that are asked for hear of the tokens that are used.
    """

    version: int
    row_bytes_max: int
    finished_run_days: int
    output_bytes_max: int
    rejected_bytes_max: int
    quotas: bool = False
    session_quotas: bool = False
    resume_ms: int = 86_400_000
    token_quotas: bool = False


class AnnouncedRules(NamedTuple):
    """Rules that begin with the partition's next record of `RulesActivation`.

    Attributes:
        from_offset: Where the partition was at the announcement; they begin there or later.
        principal: Who activated them.
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
    from_offset: int
    principal: str

    @property
    def rules(self) -> RuleSet:
        """What begins."""
        return RuleSet._make(self[: len(RuleSet._fields)])
