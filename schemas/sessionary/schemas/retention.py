"""How long records are kept: data classes and append time in, compliance tags and two dates out.

`retain_until` ends the longest keep period that applies, `personal_until` the delete-by period of
personal data. A row lives until the first; its personal columns are blanked at the second.

    data class   tag and retention class   kept
    financial    sox_audit                 7 calendar years
    medical      hipaa_privacy             6 calendar years
    personal     gdpr_retention            30 days, also for the personal columns of other rows
    legal        none of its own yet: that of the other classes, or as without one
    (none)       default                   365 days

A calendar year later is the same date and time of day in UTC; for 29 February it is 1 March if the
year is no leap year. The periods (GDPR practice, SOX, HIPAA) are a product's defaults, not legal
advice. Processors use this for audit records, sinks for rows of history.
"""

from collections.abc import Sequence
from datetime import date
from functools import lru_cache
from typing import Final, NamedTuple, get_args

from sessionary.schemas.types import DataClass

DAY_US: Final = 86_400_000_000
DEFAULT_US: Final = 365 * DAY_US
PERSONAL_US: Final = 30 * DAY_US
PERSONAL_TAG: Final = "gdpr_retention"
# Data class, tag, calendar years; the longest period first.
_KEEP_YEARS: Final[tuple[tuple[DataClass, str, int], ...]] = (
    ("financial", "sox_audit", 7),
    ("medical", "hipaa_privacy", 6),
)
_CLASSES_MAX: Final = len(get_args(DataClass))
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_new = tuple.__new__  # makes a NamedTuple in half the time of the class's constructor


class Retention(NamedTuple):
    """Until when a record is kept.

    Attributes:
        retention_class: The compliance tag with the longest period, or `default`.
        retain_until: When the record may be deleted; µs since the epoch.
        personal_until: When its personal columns are blanked; µs since the epoch. None if it holds
            no personal data.
    """

    retention_class: str
    retain_until: int
    personal_until: int | None


def compliance_tags(data_classes: Sequence[DataClass]) -> tuple[str, ...]:
    """Return the compliance tags of the data classes, sorted, each once."""
    return _rule_of(_each_once(tuple(data_classes)))[-1]


def retention_of(data_classes: Sequence[DataClass], appended_us: int) -> Retention:
    """Return the retention of a record with these classes of data, appended at `appended_us`.

    `appended_us` is the log's time in µs since the epoch. Raises `ValueError` or `OverflowError`
    if a period of calendar years would end after the year 9999.
    """
    classes = data_classes if type(data_classes) is tuple else tuple(data_classes)
    name, period_us, years, personal, _ = _rule_of(_each_once(classes))
    if years:
        period_us = _years_us(years, appended_us // DAY_US)
    return _new(Retention, (name, appended_us + period_us, appended_us + PERSONAL_US if personal else None))


def unknown_retention(appended_us: int) -> Retention:
    """Return the retention of bytes that cannot be read, and so may hold personal data."""
    return Retention("default", appended_us + DEFAULT_US, appended_us + PERSONAL_US)


def _each_once(data_classes: tuple[DataClass, ...]) -> tuple[DataClass, ...]:
    # Any client may send a class a million times, and the cache must not keep a tuple as long.
    return data_classes if len(data_classes) <= _CLASSES_MAX else tuple(dict.fromkeys(data_classes))


@lru_cache(maxsize=256)  # few combinations of classes, which recur in every record
def _rule_of(data_classes: tuple[DataClass, ...]) -> tuple[str, int, int, bool, tuple[str, ...]]:
    """Return retention class, period in µs, period in years, whether data is personal, and tags.

    One of the two periods is 0. A plain tuple is unpacked faster than a NamedTuple.
    """
    personal = "personal" in data_classes
    kept = [(tag, years) for data_class, tag, years in _KEEP_YEARS if data_class in data_classes]
    tags = tuple(sorted([tag for tag, _ in kept] + [PERSONAL_TAG] * personal))
    if kept:
        return (kept[0][0], 0, kept[0][1], personal, tags)
    if personal:
        return (PERSONAL_TAG, PERSONAL_US, 0, personal, tags)
    return ("default", DEFAULT_US, 0, personal, tags)


@lru_cache(maxsize=256)  # records of one moment share their day
def _years_us(years: int, day: int) -> int:
    """Return the length in µs of `years` calendar years from a UTC day (days since the epoch)."""
    start = date.fromordinal(_EPOCH_ORDINAL + day)
    try:
        end = start.replace(year=start.year + years)
    except ValueError:  # 29 February
        end = date(start.year + years, 3, 1)
    return (end - start).days * DAY_US
