"""Calls of a process that stood still between its reservation and the call, or during the call."""

import sys
import time
from collections.abc import Callable

import pytest

from sessionary.producers import Session, ToolCallOverdue, Unavailable, tool
from sessionary.producers.durable.reserved_call import ReservedCall
from sessionary.producers.process.clocks import awake_and_asleep_s
from sessionary.producers.run_ports import CallView
from sessionary.producers.testing import memory_client
from sessionary.producers.testing.memory_runs import MemoryRuns
from sessionary.schemas.events import ToolCallResolved, ToolCallStarted
from sessionary.schemas.ids import derived_id
from sessionary.schemas.types import Limits

KEY = "order-7"
TOOL_S = 30.0
LIMITS = Limits(tool_ms=30_000, idle_ms=10**7, override=True)


class Stage:
    """A session whose process stands still after each reservation that is granted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pauses: Callable[[], object]) -> None:
        client, self.memory = memory_client(on_rejected=lambda _: None)
        self.session: Session = client.session(user_id="u", limits=LIMITS)
        self.calls = 0
        self.pauses = list(pauses)
        self.during_call: Callable[[], object] = lambda: None
        self.send = tool(name="send", effect="write", key=lambda: KEY)(self._send)
        self.look = tool(name="look", effect="read", key=lambda: KEY)(self._send)
        granted = ReservedCall._ask_reservation

        def ask_and_stand_still(call: ReservedCall) -> CallView | None:
            if (known := granted(call)) is None and self.pauses:
                self.pauses.pop(0)()
            return known

        monkeypatch.setattr(ReservedCall, "_ask_reservation", ask_and_stand_still)

    def _send(self) -> str:
        self.calls += 1
        self.during_call()
        return f"sent {self.calls}"

    def resolve_as_failed(self) -> None:
        """Let a person find that the call had no effect."""
        call_id = derived_id("acme", self.session.session_id, "", KEY)
        self.session.emit(ToolCallResolved(call_id, "send", KEY, "failed", None, "ann"), actor="ann")

    def tries(self) -> list[int]:
        events = [event.payload for event in self.memory.events()]
        return [payload.try_number for payload in events if isinstance(payload, ToolCallStarted)]


@pytest.mark.parametrize(("pause_s", "tries"), [(TOOL_S - 1, [1]), (TOOL_S, [1, 2]), (TOOL_S + 1, [1, 2])])
def test_a_reservation_that_is_too_old_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, tries: list[int]
) -> None:
    stage = Stage(monkeypatch, lambda: stage.memory.advance(pause_s))
    with stage.session:
        assert stage.send() == "sent 1"
    assert stage.tries() == tries
    assert stage.memory.rejections() == []


def test_a_call_that_another_process_made_meanwhile_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def pause() -> None:
        stage.memory.advance(TOOL_S + 1)
        stage.resolve_as_failed()
        assert stage.send() == "sent 1"

    stage = Stage(monkeypatch, pause)
    with stage.session:
        assert stage.send() == "sent 1"
    assert stage.calls == 1


def test_a_call_without_an_effect_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, lambda: stage.memory.advance(TOOL_S + 1))
    with stage.session:
        assert stage.look() == "sent 1"
    assert stage.tries() == [1]


def test_a_process_that_always_stands_still_for_too_long_makes_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.pauses = [lambda: stage.memory.advance(TOOL_S + 1)] * 5
    with stage.session, pytest.raises(Unavailable, match="the limit of 30000 ms was over 3 times"):
        stage.send()
    assert stage.calls == 0
    known = MemoryRuns(stage.memory).fetch_call(stage.session.session_id, None, KEY, None, 1.0)
    assert known is not None
    assert known.state == "failed", "no person has to find out about a call that was not made"


def test_a_limit_that_is_over_for_this_process_alone_delays_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    monkeypatch.setattr(ReservedCall, "_is_overdue", lambda _: True)  # the verdict came late
    with stage.session:
        assert stage.send() == "sent 1"
    assert stage.tries() == [1]


def test_an_outcome_that_comes_after_the_limit_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.during_call = lambda: stage.memory.advance(TOOL_S + 1)
    with stage.session:
        assert stage.send() == "sent 1"
    assert stage.memory.rejections() == []


def test_an_outcome_that_is_rejected_is_an_error_for_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle() -> None:
        stage.memory.advance(TOOL_S + 1)
        stage.resolve_as_failed()

    stage = Stage(monkeypatch)
    stage.during_call = settle
    with stage.session, pytest.raises(ToolCallOverdue, match="after its limit of 30000 ms") as caught:
        stage.send()
    error = caught.value
    assert (error.reason, error.idem_key, error.state, error.result) == ("illegal_transition", KEY, "failed", "sent 1")


def test_an_outcome_whose_verdict_is_not_known_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_silent() -> None:
        stage.memory.advance(TOOL_S + 1)
        monkeypatch.setattr(ReservedCall, "_fetch_after", refuse)

    def refuse(_call: ReservedCall, _position: object) -> None:
        raise Unavailable("the control API does not answer", 1.0)

    stage = Stage(monkeypatch)
    stage.during_call = fall_silent
    with stage.session:
        assert stage.send() == "sent 1"
    known = MemoryRuns(stage.memory).fetch_call(stage.session.session_id, None, KEY, None, 1.0)
    assert known is not None
    assert known.state == "succeeded"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has CLOCK_BOOTTIME")
def test_ages_count_the_time_in_which_the_machine_sleeps() -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before_s <= awake_and_asleep_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)
