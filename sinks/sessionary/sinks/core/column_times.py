"""Times that ClickHouse's columns can hold, in µs since the epoch; pure."""

from typing import Final

from sessionary.sinks.errors import BadRow

# DateTime has 32 bits of seconds; DateTime64 in µs ends with the year 2299.
TIME_MIN_US: Final = 0
TIME_MAX_US: Final = 4_260_211_200_000_000  # 2105-01-01
REPORTED_MIN_US: Final = -2_208_988_800_000_000  # 1900-01-01
REPORTED_MAX_US: Final = 10_413_791_999_999_999  # 2299-12-31, last µs
NEVER_S: Final = 4_260_211_200


def check_log_time(name: str, value_us: int) -> int:
    """Return a time that the log or a processor set. Raises `BadRow` outside 1970 to 2104.

    Such times name table partitions and expiries. ClickHouse would store a year 9999 without
    an error.
    """
    if TIME_MIN_US <= value_us < TIME_MAX_US:
        return value_us
    raise BadRow(f"{name} {value_us} is outside the years 1970 to 2104")


def clamp_reported_time(value_us: int) -> int:
    """Return a time of an agent's clock, moved into the years 1900 to 2299.

    It is only reported: a wrong clock must not cost the audit trail a row.
    """
    return min(max(value_us, REPORTED_MIN_US), REPORTED_MAX_US)


def expiry_seconds(personal_until_us: int | None) -> int:
    """Return when personal columns expire, in s since the epoch; `NEVER_S` for None."""
    return NEVER_S if personal_until_us is None else personal_until_us // 1_000_000
