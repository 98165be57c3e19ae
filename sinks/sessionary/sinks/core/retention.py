"""How long a row of history stays, by the classes of its data; pure.

Financial and medical data must be kept *at least* so long; personal data *at most* so long. The row stays for the
longest of the periods that apply, its personal columns go at 30 days wherever personal data is in it. Audit records
come with their times; here stand those of rows that come without.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

DAY_US: Final = 86_400_000_000
DEFAULT_US: Final = 365 * DAY_US
PERSONAL_US: Final = 30 * DAY_US
_CLASSES: Final = (
    ("financial", "sox_audit", 7 * 365 * DAY_US + 2 * DAY_US),
    ("medical", "hipaa_privacy", 6 * 365 * DAY_US + 2 * DAY_US),
    ("personal", "gdpr_retention", PERSONAL_US),
)
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


__all__ = [
    "DEFAULT_US",
    "PERSONAL_US",
    "Retention",
    "retention_of",
    "unknown_retention",
]
