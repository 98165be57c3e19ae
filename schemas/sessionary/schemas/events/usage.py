"""Usage family."""

from typing import NamedTuple


class UsageRecorded(NamedTuple):
    """Tokens and cost of one call."""

    model: str | None
    tokens_in: int
    tokens_out: int
    model_cost_usd_micros: int
    tool_cost_usd_micros: int
    is_timeout_retry: bool
    retry_of: str | None = None
