"""Which class of the sinks' errors an exception of the ClickHouse client belongs to."""

from typing import Final

from clickhouse_connect.driver.exceptions import ClickHouseError, DataError, Error, OperationalError

from sessionary.sinks.errors import OperatorError, Transient

# Codes of ClickHouse's ErrorCodes.cpp. 252 is transient: its other cause, the limit of partitions
# per block, is switched off.
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


def classify_error(error: Exception) -> Transient | OperatorError:
    """Return the class of an exception of the ClickHouse client; not meant for encoding errors.

    Returns `error` itself if it is classified already. An unknown code stops the sink: going on
    could lose rows, stopping loses none.
    """
    if isinstance(error, Transient | OperatorError):
        return error
    text = str(error).strip().splitlines()[0][:500] if str(error).strip() else type(error).__name__
    code = error.code if isinstance(error, Error) else None
    if code is not None:
        if code in _TRANSIENT:
            return Transient(_TRANSIENT[code], text)
        return OperatorError(_OPERATOR.get(code, f"code_{code}"), text)
    if isinstance(error, DataError) or not isinstance(error, ClickHouseError | OSError):
        return OperatorError("client", text)
    if isinstance(error, OperationalError | OSError) or type(error).__name__ == "DatabaseError":
        # Without a code, the answer came from a proxy or a socket, not from ClickHouse.
        return Transient("network", text)
    return OperatorError("client", text)
