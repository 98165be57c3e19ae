"""A hundred runs of one process whose tool fails at once: its rate is limited, waits are spread.

Processes do not share the rate. The runs share a clock that takes the place of the tools' waits.
"""

import heapq
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from sessionary.producers import tool
from sessionary.producers.context.scope import current_scope, keep_scope
from sessionary.producers.durable import tool as tool_module
from sessionary.producers.durable.flow import Call, Flow, Wait
from sessionary.producers.run_ports import Waits
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import ToolCallFailed, ToolCallStarted

RUNS, CALLS_PER_S, TRIES = 100, 10.0, 6


class TooManyRequests(Exception):
    """What a service says that has no room."""

    status_code = 429


class FlowClock:
    """Runs flows at once on a clock that stands still while they work."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []
        self.calls_s: list[float] = []
        self._turns: list[tuple[float, int, Flow[Any], Any]] = []
        self._numbers = itertools.count()

    def add(self, flow: Flow[Any]) -> None:
        self._push(0.0, flow)

    def run_all(self) -> list[type[BaseException]]:
        """Run all flows to their ends; return what they raise."""
        ends: list[type[BaseException]] = []
        while self._turns:
            self.now_s, _, flow, scope = heapq.heappop(self._turns)
            keep_scope(scope)
            try:
                self._run_to_wait(flow)
            except (StopIteration, TooManyRequests) as end:
                ends.append(type(end))
        return ends

    def _run_to_wait(self, flow: Flow[Any]) -> None:
        effect = next(flow)
        while not isinstance(effect, Wait) or effect.seconds <= 0:
            if isinstance(effect, Wait):
                effect = flow.send(None)
                continue
            try:
                found = self._perform(effect)
            except TooManyRequests as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(found)
        self.waits.append(effect.seconds)
        self._push(effect.seconds, flow)

    def _perform(self, effect: Any) -> Any:
        if isinstance(effect, Call):
            self.calls_s.append(self.now_s)
            return effect.function()
        return effect.work()

    def _push(self, wait_s: float, flow: Flow[Any]) -> None:
        heapq.heappush(self._turns, (self.now_s + wait_s, next(self._numbers), flow, current_scope()))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlowClock]:
    """Tools hand their flows to this clock instead of running them."""
    found = FlowClock()
    monkeypatch.setattr(tool_module, "run_flow", lambda flow, pause: found.add(flow))
    outside = current_scope()
    yield found
    keep_scope(outside)


def test_a_hundred_runs_that_fail_at_once_call_no_faster_than_allowed(clock: FlowClock) -> None:
    @tool(name="search", effect="read", calls_per_s=CALLS_PER_S)
    def search(number: int) -> None:
        raise TooManyRequests(f"{number}")

    client, memory = memory_client()
    waits = Waits(lambda: clock.now_s, None, random.Random(7).random)
    client.core.services = client.core.services._replace(waits=waits)
    with client:
        for number in range(RUNS):
            session = client.create(user_id="u").start()
            run = session.run("report")
            run.__enter__()
            search(number)
            run._leave_metadata()
        ends = clock.run_all()
        events = [event.payload for event in memory.events()]
    assert ends == [TooManyRequests] * RUNS
    assert len(clock.calls_s) == RUNS * TRIES
    # Never more than the rate in any second, so never more than 600 in a minute.
    for first, later in zip(clock.calls_s, clock.calls_s[int(CALLS_PER_S) :], strict=False):
        assert later - first >= 1.0 - 1e-6
    assert clock.calls_s[-1] == pytest.approx((RUNS * TRIES - 1) / CALLS_PER_S, rel=0.1)
    # The record has each try, so that the calls of a minute can be counted.
    tries = [payload.try_number for payload in events if isinstance(payload, ToolCallStarted)]
    assert sorted(tries) == sorted([*range(1, TRIES + 1)] * RUNS)
    assert sum(isinstance(payload, ToolCallFailed) for payload in events) == RUNS * TRIES


def test_the_waits_of_a_hundred_failures_are_spread(clock: FlowClock) -> None:
    @tool(name="lookup", effect="read")
    def lookup(number: int) -> None:
        raise TooManyRequests(f"{number}")

    client, _ = memory_client()
    client.core.services = client.core.services._replace(
        waits=Waits(lambda: clock.now_s, None, random.Random(7).random)
    )
    with client:
        for number in range(RUNS):
            session = client.create(user_id="u").start()
            run = session.run("report")
            run.__enter__()
            lookup(number)
            run._leave_metadata()
        clock.run_all()
    assert clock.calls_s[:RUNS] == [0.0] * RUNS
    seconds = [clock.calls_s[RUNS * tries : RUNS * (tries + 1)] for tries in range(TRIES)]
    for calls, least, most in zip(seconds[1:], (0.4, 1.2), (0.6, 1.8), strict=False):
        assert least <= min(calls) <= max(calls) <= most
        in_tenths = [sum(tenth / 10 <= call < (tenth + 1) / 10 for call in calls) for tenth in range(20)]
        assert max(in_tenths) <= RUNS * 0.65
    assert len(set(clock.waits)) > RUNS * (TRIES - 1) * 0.8
