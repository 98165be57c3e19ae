"""Compliance tags and retention: data classes in, tags and two dates out.

`retain_until` is the longest keep period that applies, `personal_until` the shortest delete-by period of personal data;
the row lives to the first, its personal columns to the second. Periods: GDPR practice 30 days, SOX 7 years, HIPAA 6
years. They are defaults of a product, not legal advice.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sessionary.schemas.types import DataClass

TAGS: dict[DataClass, str] = {
    "personal": "gdpr_retention",
    "financial": "sox_audit",
    "medical": "hipaa_privacy",
}
_KEEP_YEARS = (("sox_audit", 7), ("hipaa_privacy", 6))  # longest first
_PERSONAL = timedelta(days=30)
_DEFAULT = timedelta(days=365)


class Retention(NamedTuple):
    """How long a record is kept; µs since the epoch."""

    retention_class: str
    retain_until: int
    personal_until: int | None


def tags(data_classes: Sequence[DataClass]) -> tuple[str, ...]:
    """Return the compliance tags of the data classes, sorted."""
    return tuple(sorted({TAGS[name] for name in data_classes if name in TAGS}))


def retention(compliance_tags: Sequence[str], appended_ms: int) -> Retention:
    """Return the retention of a record that was appended at `appended_ms` (ms since the epoch)."""
    appended = datetime.fromtimestamp(appended_ms / 1000, UTC)
    personal = _micros(appended + _PERSONAL) if "gdpr_retention" in compliance_tags else None
    for name, years in _KEEP_YEARS:
        if name in compliance_tags:
            return Retention(name, _micros(_years_later(appended, years)), personal)
    if personal is not None:
        return Retention("gdpr_retention", personal, personal)
    return Retention("default", _micros(appended + _DEFAULT), None)


def _years_later(moment: datetime, years: int) -> datetime:
    try:
        return moment.replace(year=moment.year + years)
    except ValueError:  # 29 February
        return moment.replace(year=moment.year + years, month=3, day=1)


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1000) * 1000


__all__ = ["TAGS", "Retention", "retention", "tags"]
