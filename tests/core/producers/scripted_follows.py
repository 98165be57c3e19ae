"""Streams of states that a test writes down, in place of the control API."""

import threading
import time
from collections.abc import Callable, Sequence

from sessionary.producers.errors import Unavailable
from sessionary.producers.run_ports import FollowedState, SessionView, StateStream
from sessionary.schemas.types import Limits, Rejection

SESSION_ID = "0b0e7f0a-0000-4000-8000-000000000000"
_LIMITS = Limits()
Step = FollowedState | Exception


def view_of(version: int, epoch: int = 1, state: str = "Active", rejected: int = 0) -> SessionView:
    rejections = tuple(Rejection(n, "stale_epoch", f"e{n}") for n in range(rejected))
    return SessionView(
        *(SESSION_ID, state, None, epoch, version, "billing", f'{{"n": {version}}}', 1, None, None, _LIMITS, None),
        rejections=rejections,
    )


def state_at(offset: int, version: int, epoch: int = 1, state: str = "Active", rejected: int = 0) -> FollowedState:
    return FollowedState(view_of(version, epoch, state, rejected), (0, offset))


ARCHIVED = FollowedState(None)


class ScriptedStream:
    """Tells its steps, raises those that are errors, and is then silent until it is closed."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        self._closed = threading.Event()
        self.is_read = threading.Event()

    def read_states(self, timeout_s: float) -> Sequence[FollowedState]:
        if self._steps:
            step = self._steps.pop(0)
            if isinstance(step, Exception):
                raise step
            return (step,)
        self.is_read.set()
        if self._closed.wait(timeout_s):
            raise Unavailable("closed", 0.1)
        return ()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()


class ScriptedFollows:
    """Opens one stream after the other; an error in place of one is raised. The last one stays."""

    def __init__(self, *streams: Sequence[Step] | Exception) -> None:
        self._streams = list(streams)
        self.opened: list[ScriptedStream] = []
        self.asked: list[tuple[int, int] | None] = []
        self.asked_s: list[float] = []
        self.on_open: Callable[[], None] = lambda: None

    def check_configured(self) -> None:
        return None

    def open_states(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> StateStream:
        assert session_id == SESSION_ID
        self.asked.append(after)
        self.asked_s.append(time.monotonic())
        self.on_open()
        steps = self._streams.pop(0) if len(self._streams) > 1 else self._streams[0]
        if isinstance(steps, Exception):
            raise steps
        self.opened.append(ScriptedStream(steps))
        return self.opened[-1]
