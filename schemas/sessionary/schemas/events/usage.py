"""Events of usage: tokens and cost."""

from typing import NamedTuple


class UsageRecorded(NamedTuple):
    """Tokens and cost of one call.

    Attributes:
        model: The model, if one was called.
        tokens_in: Tokens of the input.
        tokens_out: Tokens of the output.
        model_cost_usd_micros: Cost of the model, in millionths of a US dollar.
        tool_cost_usd_micros: Cost of tools, in millionths of a US dollar.
        is_timeout_retry: The call repeats one that timed out.
        retry_of: The call that is repeated, if any.
    """

    model: str | None
    tokens_in: int
    tokens_out: int
    model_cost_usd_micros: int
    tool_cost_usd_micros: int
    is_timeout_retry: bool
    retry_of: str | None = None
