"""Follows a list: the rows that are new after the list was shown, each of them once."""

import sys
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Annotated, Final

import typer

from sessionary.infra.cli.output import print_message
from sessionary.infra.cli.tables import show_line, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.errors import Unavailable

FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Oldest first, then go on with new ones until Ctrl-C.")
]
# Whose row landed then may be changed: Kafka does not keep records for so long that more is read.
RECENT: Final = "landed_at >= {landed:DateTime64(3, 'UTC')} AND appended_at >= now() - INTERVAL 32 DAY"
_EVER: Final = "1970-01-01 00:00:00.000"
_POLL_S: Final = 1.0
# A block's rows have the time at which the server began to insert it; they are seen at its end.
_INSERT_S_MAX: Final = 60
_KEYS_MAX: Final = 100_000


class RowTail:
    """The rows of a source that were not seen yet. Not thread-safe."""

    def __init__(
        self,
        fetch_landed: Callable[[str], list[Row]],
        fetch_horizon: Callable[[], str],
        row_key: Callable[[Row], Hashable],
    ) -> None:
        """Ask nothing yet.

        `fetch_landed`: returns the rows that landed at a time or later, oldest first.
        `fetch_horizon`: returns the time before which every row that landed can be seen.
        """
        self._fetch_landed, self._fetch_horizon, self._row_key = fetch_landed, fetch_horizon, row_key
        self._horizon = _EVER
        self._seen: dict[Hashable, None] = {}

    def begin_after(self, fetch_list: Callable[[], list[Row]]) -> list[Row]:
        """Return the list's rows; they and all older ones count as seen. Raises what it raises."""
        horizon = self._fetch_horizon()
        former = self._fetch_landed(horizon)  # before the list: what lands in between is in one of the two
        found = fetch_list()
        self._see_rows([*former, *found])
        self._horizon = horizon
        return found

    def fetch_unseen(self) -> list[Row]:
        """Return the rows that landed since, oldest first; blocks for a query."""
        horizon = self._fetch_horizon()
        unseen = self._see_rows(self._fetch_landed(self._horizon))
        self._horizon = horizon
        return unseen

    def _see_rows(self, rows: Sequence[Row]) -> list[Row]:
        unseen = [row for row in rows if self._row_key(row) not in self._seen]
        self._seen.update((self._row_key(row), None) for row in rows)
        while len(self._seen) > max(_KEYS_MAX, len(rows)):
            self._seen.pop(next(iter(self._seen)))
        return unseen


def fetch_horizon(source: ClickHouseClient) -> str:
    """Return the time before which every row of the server's that landed can be seen."""
    return str(source.fetch_one(f"SELECT toString(now64(3, 'UTC') - INTERVAL {_INSERT_S_MAX} SECOND) AS at")["at"])


def follow_list(
    tail: RowTail,
    fetch_list: Callable[[], list[Row]],
    columns: Sequence[str],
    *,
    as_json: bool,
    poll_s: float = _POLL_S,
) -> None:
    """Print a list, oldest first, then its new rows as they land, until `KeyboardInterrupt`.

    Waits `poll_s` before it asks again.
    """
    show_rows(tail.begin_after(fetch_list)[::-1], as_json=as_json, columns=columns)
    while True:
        sys.stdout.flush()  # a program that reads the lines gets each at once
        time.sleep(poll_s)
        try:
            unseen = tail.fetch_unseen()
        except Unavailable as error:
            print_message(f"{error}; asked again")
            continue
        for row in unseen:
            show_line(row, as_json=as_json, columns=columns)
