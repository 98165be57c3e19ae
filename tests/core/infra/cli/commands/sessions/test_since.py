"""The option `--since`."""

from datetime import UTC, datetime

import pytest

from sessionary.infra.cli.commands.sessions.since import parse_since
from sessionary.schemas.errors import Invalid

_NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (None, "1970-01-01 00:00:00"),
        ("90s", "2026-03-01 11:58:30.000000"),
        ("15m", "2026-03-01 11:45:00.000000"),
        ("2h", "2026-03-01 10:00:00.000000"),
        ("7d", "2026-02-22 12:00:00.000000"),
        ("2026-02-03T04:05", "2026-02-03 04:05:00.000000"),
        ("2026-02-03", "2026-02-03 00:00:00.000000"),
        ("2026-02-03T04:05:06.789+02:00", "2026-02-03 02:05:06.789000"),
        ("1900-01-01", "1970-01-01 00:00:00.000000"),
    ],
)
def test_a_time_or_how_long_ago(text: str | None, time: str) -> None:
    assert parse_since(text, _NOW) == time


@pytest.mark.parametrize("text", ["", "yesterday", "5x", "-5m", "999999999d"])
def test_another_text_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(Invalid, match="90s, 15m, 2h or 7d"):
        parse_since(text, _NOW)
