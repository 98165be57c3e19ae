"""Trouble of a sink, in three classes, and which ClickHouse error belongs to which.

    SessionaryError
    ├── Invalid
    │   └── BadRow(detail)                a property of the record's bytes: dead letter, and on
    ├── Unavailable
    │   └── Transient(reason, detail)     passes by itself: wait, keep polling, for ever
    ├── OperatorError(reason, detail)     somebody must act: stand still, say so, look again, never skip
    └── Fenced                            another process has this one's name; end

`reason` is short and from a small set: it is the label of a metric.
"""

from typing import Final

from clickhouse_connect.driver.exceptions import ClickHouseError, DataError, Error, OperationalError

from sessionary.schemas.errors import Invalid, SessionaryError, Unavailable

RETRY_FIRST_S: Final = 0.25
RETRY_LAST_S: Final = 10.0

# Codes of ClickHouse's ErrorCodes.cpp. 252 passes: the limit of partitions per block, its other cause, is off.
_TRANSIENT: Final = {
    3: "unexpected_end",
    32: "unexpected_end",
    33: "unexpected_end",
    159: "timeout",
    202: "too_many_queries",
    203: "no_free_connection",
    209: "timeout",
    210: "network",
    236: "aborted",
    241: "memory_limit",
    242: "read_only_replica",
    243: "no_space",
    252: "too_many_parts",
    279: "network",
    285: "too_few_replicas",
    286: "quorum",
    319: "unknown_outcome",
    394: "aborted",
    425: "system",
    439: "no_thread",
    473: "deadlock",
    999: "keeper",
    1000: "server",
    1001: "server",
}
_OPERATOR: Final = {
    10: "no_column",
    16: "no_column",
    47: "no_column",
    53: "wrong_type",
    60: "no_table",
    81: "no_database",
    115: "unknown_setting",
    164: "read_only",
    192: "authentication",
    193: "authentication",
    194: "authentication",
    497: "no_right",
    516: "authentication",
}


class BadRow(Invalid):
    """A record that can become no row, whoever tries and however often."""

    def __init__(self, detail: str) -> None:
        super().__init__("bad_row", detail)


class Transient(Unavailable):
    """Trouble that passes by itself."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}", RETRY_FIRST_S)
        self.reason = reason


class OperatorError(SessionaryError):
    """Trouble that stays until somebody acts; the message says what to do where that is known."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Fenced(SessionaryError):
    """Kafka has shut this member out for good: another process uses the same instance name."""


def classify(error: Exception) -> Transient | OperatorError:
    """Return what an exception of the ClickHouse client means; errors of encoding are not meant for it.

    A code that is on no list stops the sink: going on could lose rows, standing still loses none.
    """
    text = str(error).strip().splitlines()[0][:500] if str(error).strip() else type(error).__name__
    code = error.code if isinstance(error, Error) else None
    if code is not None:
        if code in _TRANSIENT:
            return Transient(_TRANSIENT[code], text)
        return OperatorError(_OPERATOR.get(code, f"code_{code}"), text)
    if isinstance(error, DataError) or not isinstance(error, ClickHouseError | OSError):
        return OperatorError("client", text)
    if isinstance(error, OperationalError | OSError) or type(error).__name__ == "DatabaseError":
        # No code: the answer came from no ClickHouse (a proxy, a socket).
        return Transient("network", text)
    return OperatorError("client", text)


__all__ = ["RETRY_FIRST_S", "RETRY_LAST_S", "BadRow", "Fenced", "OperatorError", "Transient", "classify"]
