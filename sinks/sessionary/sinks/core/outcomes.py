"""The outcome of a session, by the reason code of the transition that ended it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# A session that has not ended is `open`, and one that ended for a reason that a newer release knows
# is `unknown`: `v_sessions` has these two.
OUTCOMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "closed": "completed",
        "completed": "completed",
        "user_idle": "user_left",  # between turns; whether its work was done, only the user knows
        "cancelled": "cancelled",
        "abnormal_termination": "failed",
        "forced": "failed",  # of a session in Error
        "unrecoverable": "failed",
        "recovery_failed": "failed",
        "invalid_config": "failed",
        "connection_failed": "failed",
        "init_timeout": "timed_out",
        "quota_timeout": "timed_out",
        "inactive": "timed_out",  # before it was admitted
        "timeout_cleanup": "timed_out",
    }
)


def fill_outcomes(sql: str) -> str:
    """Return a view's SQL with the two sides of `OUTCOMES` as arrays of texts.

    They replace `{reason_codes}` and `{outcomes}`.
    """
    return sql.replace("{reason_codes}", f"{list(OUTCOMES)}").replace("{outcomes}", f"{list(OUTCOMES.values())}")
