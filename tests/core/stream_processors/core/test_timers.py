"""Timers beside the simplest thing that can be right: the least deadline of all rows."""

import random

import pytest

from sessionary.stream_processors.core.clock import Timers

KEYS = [b"row-%d" % n for n in range(12)]


class Rows:
    """Deadlines of rows, and timers that follow them."""

    def __init__(self) -> None:
        self.due_ms: dict[bytes, int] = {}
        self.timers = Timers()

    def reload(self) -> None:
        """Fill the timers from the rows, as when a partition opens."""
        self.timers.fill(list(self.due_ms.values()), list(self.due_ms))

    def set_due(self, key: bytes, due_ms: int) -> None:
        """Move a row's deadline, or add a row."""
        self.due_ms[key] = due_ms
        self.timers.schedule(key, due_ms)

    def least(self, until_ms: int) -> tuple[int, bytes] | None:
        """Return what `next_due` must return."""
        return min(((due_ms, key) for key, due_ms in self.due_ms.items() if due_ms <= until_ms), default=None)


def test_filled_entries_come_up_in_the_order_of_deadlines_and_keys() -> None:
    rows = Rows()
    rows.due_ms = {b"d": 7, b"c": 5, b"a": 7, b"b": 3}
    rows.reload()
    found = []
    while (due := rows.timers.next_due(rows.due_ms.get, 7)) is not None:
        found.append(due)
        del rows.due_ms[due[1]]
    assert found == [(3, b"b"), (5, b"c"), (7, b"a"), (7, b"d")]
    assert rows.timers.keys() == []


def test_a_filled_entry_is_dropped_if_its_row_was_scheduled_since() -> None:
    rows = Rows()
    rows.due_ms = {b"a": 5, b"b": 6}
    rows.reload()
    rows.set_due(b"a", 9)
    assert rows.timers.next_due(rows.due_ms.get, 6) == (6, b"b")
    assert sorted(rows.timers.keys()) == [b"a", b"b"]
    rows.set_due(b"b", 20)
    assert rows.timers.next_due_ms(rows.due_ms.get) == 9


def test_keys_are_those_of_rows_however_many_entries_a_row_has() -> None:
    timers = Timers()
    timers.fill([5, 7], [b"a", b"b"])
    assert sorted(timers.keys()) == [b"a", b"b"]
    timers.schedule(b"a", 3)
    timers.schedule(b"c", 9)
    assert set(timers.keys()) == {b"a", b"b", b"c"}
    timers.move_earlier(1)  # leaves one entry of each
    assert sorted(timers.keys()) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("apart_ms", [0, 1_000])
def test_one_row_is_asked_for_the_earliest_deadline(apart_ms: int) -> None:
    rows = Rows()
    asked: list[bytes] = []
    rows.due_ms = {key: 1_000 + apart_ms * n for n, key in enumerate(KEYS)}
    rows.reload()

    def due_of(key: bytes) -> int | None:
        asked.append(key)
        return rows.due_ms.get(key)

    assert rows.timers.next_due_ms(due_of) == 1_000
    assert len(asked) == 1


@pytest.mark.parametrize("seed", range(40))
def test_timers_tell_the_least_deadline_whatever_happens_to_the_rows(seed: int) -> None:
    chance, rows = random.Random(seed), Rows()
    now_ms = 0
    for _ in range(200):
        key = chance.choice(KEYS)
        match chance.randrange(7):
            case 0:
                rows.reload()
            case 1:
                rows.due_ms.pop(key, None)  # the row has ended; its entry finds that out
            case 2:
                rows.timers.move_earlier(5)
                rows.due_ms = {each: due_ms - chance.choice((0, 5)) for each, due_ms in rows.due_ms.items()}
            case 3:
                now_ms += chance.randrange(40)
            case _:
                rows.set_due(key, now_ms + chance.randrange(100))
        until_ms = now_ms + chance.choice((0, 20))
        keys = rows.timers.keys_until(until_ms, 100)
        assert len(keys) == len(set(keys))
        assert set(keys) >= {each for each, due_ms in rows.due_ms.items() if due_ms <= until_ms}
        assert len(rows.timers.keys_until(until_ms, 2)) == min(2, len(keys))
        assert rows.timers.may_be_due(now_ms) or rows.least(now_ms) is None
        assert set(rows.timers.keys()) >= set(rows.due_ms)
        if chance.random() < 0.5:
            assert rows.timers.next_due_ms(rows.due_ms.get) == min(rows.due_ms.values(), default=None)
        assert rows.timers.next_due(rows.due_ms.get, until_ms) == rows.least(until_ms)
