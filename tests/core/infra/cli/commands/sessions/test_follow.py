"""A list that is followed has each row once, in whatever order rows can be seen."""

import random
from typing import NamedTuple

import pytest

from sessionary.infra.cli.commands.sessions.follow import RowTail
from sessionary.infra.clickhouse_client import Row

SEEN_AFTER_MAX = 60  # an insert takes at most so long


class Landing(NamedTuple):
    """A row of a table: when its insert began, and when it can be seen."""

    number: int
    landed: int
    seen: int


class FakeTable:
    """A table whose rows can be seen some time after they landed, as the clock goes on."""

    def __init__(self, landings: list[Landing]) -> None:
        self._landings, self.now = landings, 0

    def fetch_landed(self, landed: str) -> list[Row]:
        since = int(landed) if landed.lstrip("-").isdigit() else 0
        return [{"n": row.number} for row in self._landings if row.landed >= since and row.seen <= self.now]

    def fetch_horizon(self) -> str:
        return str(self.now - SEEN_AFTER_MAX)

    def fetch_list(self) -> list[Row]:
        """Return the two newest rows."""
        return self.fetch_landed("0")[::-1][:2]


def follow_table(table: FakeTable, end: int, step: int) -> list[int]:
    """Return the numbers that are told from the 100th second on."""
    table.now = 100
    tail = RowTail(table.fetch_landed, table.fetch_horizon, lambda row: row["n"])
    told = [row["n"] for row in tail.begin_after(table.fetch_list)]
    while table.now < end:
        table.now += step
        told += [row["n"] for row in tail.fetch_unseen()]
    return told


@pytest.mark.parametrize("seed", range(20))
def test_no_row_is_missed_and_none_told_twice(seed: int) -> None:
    source = random.Random(seed)
    landings = []
    for number in range(500):
        landed = source.randrange(0, 400)
        landings.append(Landing(number, landed, landed + source.choice((0, 1, 5, SEEN_AFTER_MAX))))
    landings.sort(key=lambda row: row.landed)
    table = FakeTable(landings)
    told = follow_table(table, 500, source.randrange(1, 9))
    later = {row.number for row in landings if row.seen > 100}
    assert len(told) == len(set(told))
    assert later <= set(told)
    assert len(set(told) - later) == 2, "of the former rows only those of the list"


def test_a_row_that_lands_while_the_list_is_read_is_told() -> None:
    table = FakeTable([Landing(1, 90, 90), Landing(2, 91, 91), Landing(3, 100, 101)])
    table.now = 100
    tail = RowTail(table.fetch_landed, table.fetch_horizon, lambda row: row["n"])

    def read_slowly() -> list[Row]:
        found = table.fetch_list()
        table.now = 101
        return found

    assert [row["n"] for row in tail.begin_after(read_slowly)] == [2, 1]
    assert [row["n"] for row in tail.fetch_unseen()] == [3]
    assert tail.fetch_unseen() == []
