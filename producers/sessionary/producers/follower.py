"""A session that a client follows: an iterator of its committed states."""

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, Self

from sessionary.producers.errors import ClientClosed, SessionaryError, SessionLost, Unavailable
from sessionary.producers.run_ports import FollowedState, Follows, LogPosition, SessionView, StateStream

_chance = random.SystemRandom()  # the program's own sequence of numbers stays as it is
_BACK_OFF_S: Final = 0.1
_BACK_OFF_S_MAX: Final = 2.0
_OPEN_S_MAX: Final = 10.0  # how long one request may wait for the position to resume from
_LONG_S: Final = 3_600.0
_FOREVER_S: Final = 1e9


class SessionFollower:
    """The states of one session, oldest first: iterate over it. Also a context manager.

    One thread at a time may wait for states; any thread may call `close`.

    Attributes:
        session_id: The session.
    """

    def __init__(
        self,
        follows: Follows,
        session_id: str,
        find_after: Callable[[], LogPosition | None],
        first_s: float,
        timeout_s: float | None = None,
        on_close: Callable[["SessionFollower"], object] = lambda _: None,
    ) -> None:
        """Ask nothing yet.

        Args:
            follows: Opens the streams.
            session_id: The session.
            find_after: Returns the place of a record that the first state must include. It may
                block and raise.
            first_s: How long to wait for the first state.
            timeout_s: How long an iteration waits for each later one; None: without a limit.
            on_close: Is notified of the end.
        """
        self.session_id = session_id
        self._follows = follows
        self._position: LogPosition | None = None
        self._find_after: Callable[[], LogPosition | None] | None = find_after
        self._first_s, self._timeout_s = first_s, timeout_s
        self._on_close = on_close
        self.lease: object = None  # keeps the client open
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._stream: StateStream | None = None
        self._waiting: deque[FollowedState] = deque()
        self._reported: SessionView | None = None
        self._is_archived = False
        self._failures = 0
        self._owner_pid = os.getpid()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of session {self.session_id}>"

    @property
    def is_archived(self) -> bool:
        """Whether the session was archived: then no further state comes."""
        return self._is_archived

    @property
    def position(self) -> LogPosition | None:
        """(partition, offset) of the log that the state reported last includes; None before it."""
        return None if self._reported is None else self._position

    def wait_next(self, timeout_s: float | None = None) -> SessionView | None:
        """Return the next state: the present one at first, then one that differs from the last.

        Changes that follow each other closely are one state, the newest. A lost connection is
        opened again, at any worker; nothing is reported twice, and nothing older than what was
        reported.

        Args:
            timeout_s: How long to wait; None: without a limit. For the first state it is always the
                setting `verdict_timeout_s`.

        Returns:
            The state; None if the session is archived, the follower closed, or the time over.

        Raises:
            SessionLost: There is no such session, or it was archived before it was followed.
            Unavailable: The control API gave no first state in time.
            AuthenticationFailed: The control API rejects our token.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            ClientClosed: The follower is the parent's of this forked process.
        """
        self._check_process()
        limit_s = self._first_s if self._reported is None else _FOREVER_S if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        while not self._closing.is_set() and not self._is_archived:
            if self._waiting:
                view = self._take_state(self._waiting.popleft())
                if view is not None:
                    return view
                continue
            try:
                if not self._read_more(deadline):
                    break
            except Unavailable as error:
                self._drop_stream()
                if not self._pause(error, deadline):
                    break
            except SessionaryError:
                self.close()
                raise
        if self._is_archived:
            self.close()
        return None

    def close(self) -> None:
        """End the following; a thread that waits gets no state. Never raises."""
        self._closing.set()
        if self._owner_pid == os.getpid():
            with self._lock:
                stream = self._stream
            if stream is not None:
                stream.close()
            self._on_close(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SessionView:
        """Return the next state; wait as long as `follow` was given. Raises as `wait_next`."""
        view = self.wait_next(self._timeout_s)
        if view is None:
            raise StopIteration
        return view

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False

    def _read_more(self, deadline: float) -> bool:
        """Read the next reports. Return False if the time is over. Raises `Unavailable`."""
        if self._find_after is not None:
            self._position, self._find_after = self._find_after(), None
        stream = self._stream or self._open_stream(deadline)
        states = stream.read_states(max(0.0, min(deadline - time.monotonic(), _LONG_S)))
        if states:
            self._failures = 0
            self._waiting.extend(states)
        elif self._reported is None and time.monotonic() >= deadline:
            raise Unavailable(f"the control API reported no state of session {self.session_id} in time", _BACK_OFF_S)
        return bool(states) or time.monotonic() < deadline

    def _open_stream(self, deadline: float) -> StateStream:
        left_s = max(0.0, min(deadline - time.monotonic(), _OPEN_S_MAX))
        stream = self._follows.open_states(self.session_id, self._position, left_s)
        with self._lock:
            self._stream = stream
        if self._closing.is_set():  # it may have been closed meanwhile, without this stream
            stream.close()
        return stream

    def _drop_stream(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _pause(self, error: Unavailable, deadline: float) -> bool:
        """Wait before the next attempt; return False if the time is over.

        Raises `error` if there was no state in time.
        """
        pause_s = min(_BACK_OFF_S * 2**self._failures, _BACK_OFF_S_MAX) * _chance.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 10)
        left_s = deadline - time.monotonic()
        self._closing.wait(max(0.0, min(pause_s, left_s)))
        if pause_s < left_s or self._closing.is_set():
            return True
        if self._reported is None:
            self.close()
            raise error
        return False

    def _take_state(self, state: FollowedState) -> SessionView | None:
        """Return a state if it is to be reported: newer than the last one, and not the same."""
        if state.view is None:
            self._is_archived = True
            if self._reported is None:
                self.close()
                raise SessionLost(f"session {self.session_id} was archived")
            return None
        reported, view = self._reported, state.view
        if reported is not None and (view.epoch < reported.epoch or view.version < reported.version):
            return None  # of a worker that was the owner once
        if self._position is not None and state.position is not None and state.position[1] < self._position[1]:
            return None
        self._position = state.position or self._position
        if reported is not None and _without_signs(view) == _without_signs(reported):
            return None
        self._reported = view
        return view

    def _check_process(self) -> None:
        if self._owner_pid != os.getpid():
            raise ClientClosed("this follower is the parent's of this forked process; call follow again")


def _without_signs(view: SessionView) -> SessionView:
    """Return a state without fields that change by time, or by rejected events."""
    return view._replace(rejections=(), verdict=None)
