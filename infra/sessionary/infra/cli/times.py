"""Times as options take them, everywhere alike: how long ago, a date, or a full time."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sessionary.schemas.errors import Invalid

TIMES: Final = "90s, 15m, 2h or 7d ago, or a time in UTC such as 2026-11-22 or 2026-11-22T14:30"
# ClickHouse's DateTime ends in 2106; no record is older than 1970 or younger than now.
FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST: Final = datetime(2106, 1, 1, tzinfo=UTC)
_AGO: Final = re.compile(r"(\d{1,9})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_time(option: str, text: str, now: datetime) -> datetime:
    """Return the time that an option's text names, in UTC and between `FIRST` and `LAST`.

    For bounds of what is asked of ClickHouse. A time without a zone is UTC. Raises `Invalid`.
    """
    return min(max(parse_point_in_time(option, text, now), FIRST), LAST)


def parse_point_in_time(option: str, text: str, now: datetime) -> datetime:
    """Return the time that an option's text names, in UTC, as it is. Raises `Invalid`.

    It is told to a person again, so it stays what was given, also beyond any record's time.
    """
    try:
        match = _AGO.fullmatch(text)
        at = now - timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid("invalid_value", f"{option} {text}: give {TIMES}") from None
    return at
