"""Times that the database can hold: checks and conversions; pure."""

from typing import Final

from sessionary.sinks.errors import BadRow

# What the database can hold: DateTime is 32 bits of seconds, DateTime64 in µs ends with the year 2299.
TIME_MIN_US: Final = 0
TIME_MAX_US: Final = 4_260_211_200_000_000  # 2105-01-01
REPORTED_MIN_US: Final = -2_208_988_800_000_000  # 1900-01-01
REPORTED_MAX_US: Final = 10_413_791_999_999_999  # 2299-12-31, last µs
NEVER_S: Final = 4_260_211_200


def checked_time(name: str, value_us: int) -> int:
    """Return a time that the log or a processor gave. Raises `BadRow` outside 1970 to 2104.

    Such times name table partitions and expiries: a year 9999 would be stored without a word.
    """
    if TIME_MIN_US <= value_us < TIME_MAX_US:
        return value_us
    raise BadRow(f"{name} {value_us} is outside the years 1970 to 2104")


def reported_time(value_us: int) -> int:
    """Return a time that an agent's clock gave, moved into the years 1900 to 2299.

    It is only reported: a clock that lies must not cost the trail a row.
    """
    return min(max(value_us, REPORTED_MIN_US), REPORTED_MAX_US)


def expiry_s(personal_until_us: int | None) -> int:
    """Return when personal columns expire, in seconds since the epoch; `NEVER_S` for null."""
    return NEVER_S if personal_until_us is None else personal_until_us // 1_000_000


__all__ = [
    "NEVER_S",
    "REPORTED_MAX_US",
    "REPORTED_MIN_US",
    "TIME_MAX_US",
    "checked_time",
    "expiry_s",
    "reported_time",
]
