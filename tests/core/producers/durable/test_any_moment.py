"""A run whose process dies at any moment of its work completes, and repeats little of it."""

from collections import Counter

import pytest

from sessionary.producers import Json, Run, TookEffect, tool
from sessionary.producers.testing import memory_client

ITEMS = [f"item-{number}" for number in range(12)]
EVERY = 5


class Shop:
    """Work in an outside service; the process dies at one moment of it, counted from 1."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.moments = 0
        self.dies_at = dies_at
        self.parsed = Counter[str]()
        self.effects: dict[str, str] = {}  # by key
        self.ordered = Counter[str]()
        self.order = tool(
            name="order", effect="write", key=lambda item: f"order-{item}", deadline=1, query=self._find_effect
        )(self._order)

    def work(self, run: Run) -> Json:
        for item in run.items(ITEMS, name="orders", every=EVERY):
            self._live("parse")
            self.parsed[item] += 1
            self.order(item)
        return run.step("sum", self._sum)

    def _order(self, item: str) -> str:
        self._live("before the effect")
        self.effects[f"order-{item}"] = item
        self.ordered[item] += 1
        self._live("after the effect")
        return item

    def _find_effect(self, key: str) -> TookEffect | None:
        return TookEffect(self.effects[key]) if key in self.effects else None

    def _sum(self) -> int:
        self._live("sum")
        return len(self.effects)

    def _live(self, moment: str) -> None:
        self.moments += 1
        if self.moments == self.dies_at:
            raise KeyboardInterrupt(moment)


MOMENTS = len(ITEMS) * 3 + 1


@pytest.mark.parametrize("dies_at", range(1, MOMENTS + 1))
def test_a_run_that_dies_at_any_moment_completes_with_each_effect_once(dies_at: int) -> None:
    """R-004-03, R-004-12: work of one interval at most is done again."""
    shop = Shop(dies_at)
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        run = session.run("orders", run_id="r")
        run.__enter__()
        with pytest.raises(KeyboardInterrupt):
            shop.work(run)
        run._leave_metadata()
        memory.advance(2)  # the deadline of a call that was cut off
        with session.resume_run("r") as resumed:
            assert shop.work(resumed) == len(ITEMS)
        assert session.resume_run("r").resume_plan().state == "completed"
    assert shop.ordered == Counter(ITEMS)
    # An item that was cut off is begun again; a border at a tool saves the place in the list.
    assert sum(shop.parsed.values()) - len(ITEMS) <= EVERY
    assert set(shop.parsed) == set(ITEMS)
