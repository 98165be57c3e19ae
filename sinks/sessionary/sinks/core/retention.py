"""How long a row of history stays, by the classes of its data; pure.

Financial and medical data must be kept *at least* so long; personal data *at most* so long. The row stays for the
longest of the periods that apply, its personal columns go at 30 days wherever personal data is in it. Audit records
come with their times; here stand those of rows that come without.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from sessionary.sinks.errors import BadRow

DAY_US: Final = 86_400_000_000
DEFAULT_US: Final = 365 * DAY_US
PERSONAL_US: Final = 30 * DAY_US
_CLASSES: Final = (
    ("financial", "sox_audit", 7 * 365 * DAY_US + 2 * DAY_US),
    ("medical", "hipaa_privacy", 6 * 365 * DAY_US + 2 * DAY_US),
    ("personal", "gdpr_retention", PERSONAL_US),
)

# What the database can hold: DateTime is 32 bits of seconds, DateTime64 in µs ends with the year 2299.
TIME_MIN_US: Final = 0
TIME_MAX_US: Final = 4_260_211_200_000_000  # 2105-01-01
REPORTED_MIN_US: Final = -2_208_988_800_000_000  # 1900-01-01
REPORTED_MAX_US: Final = 10_413_791_999_999_999  # 2299-12-31, last µs
NEVER_S: Final = 4_260_211_200
_new = tuple.__new__  # as a NamedTuple's own constructor, in half the time


class Retention(NamedTuple):
    """Until when a row and its personal columns stay, in µs since the epoch."""

    name: str
    retain_until: int
    personal_until: int | None


@lru_cache(maxsize=256)  # there are few combinations, and they come again and again
def _rule_of(data_classes: tuple[str, ...]) -> tuple[str, int, bool]:
    """Return the name of the retention, its length, and whether personal data are in it."""
    personal = "personal" in data_classes
    for data_class, name, period_us in _CLASSES:
        if data_class in data_classes:
            return name, period_us, personal
    return "default", DEFAULT_US, personal


def retention_of(data_classes: Sequence[str], appended_us: int) -> Retention:
    """Return the retention of a row that was appended then, by its data's classes."""
    name, period_us, personal = _rule_of(data_classes if type(data_classes) is tuple else tuple(data_classes))
    return _new(Retention, (name, appended_us + period_us, appended_us + PERSONAL_US if personal else None))


def unknown_retention(appended_us: int) -> Retention:
    """Return the retention of bytes that nobody can read: they may be personal, so they go as personal data do."""
    return Retention("default", appended_us + DEFAULT_US, appended_us + PERSONAL_US)


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
    "DEFAULT_US",
    "NEVER_S",
    "PERSONAL_US",
    "REPORTED_MAX_US",
    "REPORTED_MIN_US",
    "TIME_MAX_US",
    "Retention",
    "checked_time",
    "expiry_s",
    "reported_time",
    "retention_of",
    "unknown_retention",
]
