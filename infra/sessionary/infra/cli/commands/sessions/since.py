"""The option `--since`: a time, or how long ago."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from sessionary.schemas.errors import Invalid

SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        help="Only from then on: 90s, 15m, 2h or 7d ago, or a time in UTC such as 2026-11-22T14:30.",
        show_default=False,
    ),
]
_AGO: Final = re.compile(r"(\d{1,9})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_since(text: str | None, now: datetime) -> str:
    """Return the time as ClickHouse takes it; its first time if `text` is None.

    Raises `Invalid`.
    """
    return "1970-01-01 00:00:00" if text is None else f"{_since_time(text, now):%Y-%m-%d %H:%M:%S.%f}"


def since_ms(text: str | None, now: datetime) -> int:
    """Return the time in ms since the epoch; 0 if `text` is None. Raises `Invalid`."""
    return 0 if text is None else int(_since_time(text, now).timestamp() * 1_000)


def _since_time(text: str, now: datetime) -> datetime:
    try:
        match = _AGO.fullmatch(text)
        at = now - timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise Invalid(
            "invalid_value", f"--since {text}: give 90s, 15m, 2h or 7d, or a time such as 2026-11-22T14:30"
        ) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(at.astimezone(UTC), datetime(1970, 1, 1, tzinfo=UTC))
