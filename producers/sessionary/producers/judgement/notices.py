"""Tells the user's callbacks what became of sessions and events. Thread-safe."""

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from sessionary.producers.errors import EventRefused, ProducerError, SessionFenced, SessionHeld, SessionTimedOut
from sessionary.producers.ports import OnError
from sessionary.producers.process.guards import guard_callback

OnRefused = Callable[[EventRefused], None]
"""Called once for each refused event, on any thread. Must not block for long."""

OnTimedOut = Callable[[SessionTimedOut], None]
"""Called if a clock of a session has fired, on any thread. Must not block for long."""

OnFenced = Callable[[SessionFenced], None]
"""Called if another process took a session over, on any thread. Must not block for long."""


class SessionGoesOn(NamedTuple):
    """A session that others had paused is Active again, and its holder goes on.

    Attributes:
        session_id: The session.
        epoch: The epoch in which the holder's events are sent from now on.
        reason_code: Why it goes on: `resumed`, `approved`, `refused` or `expired`.
    """

    session_id: str
    epoch: int
    reason_code: str


Finding = ProducerError | SessionGoesOn
OnPaused = Callable[[SessionHeld], None]
"""Called if others paused a session, on any thread. Must not block for long."""

OnResumed = Callable[[SessionGoesOn], None]
"""Called if an operator or a clock let a session go on, on any thread. Must not block for long."""


class Callbacks(NamedTuple):
    """A user's callbacks; without one, `on_error` is called."""

    on_error: OnError
    on_refused: OnRefused | None = None
    on_timed_out: OnTimedOut | None = None
    on_fenced: OnFenced | None = None
    on_paused: OnPaused | None = None
    on_resumed: OnResumed | None = None


class Notices:
    """Calls the callbacks, and counts refused events. Ends no thread, whatever a callback raises.

    An exception goes to `on_error`. What is none, such as `SystemExit`, is logged, and so is what
    `on_error` raises. A `KeyboardInterrupt` in the main thread is the user's own and passes.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._report = guard_callback(callbacks.on_error)
        self._tell_callback = guard_callback(self._call_back)
        self._lock = Lock()
        self._refused = 0

    @property
    def refused(self) -> int:
        """How many delivered events were refused, as far as the client was told."""
        return self._refused

    def tell(self, finding: Finding, *, raised: bool = False) -> None:
        """Call the callback of a finding; `on_error` if there is none, unless a verb raised it.

        That a session goes on is no error: without a callback it is not told.
        """
        if isinstance(finding, EventRefused):
            with self._lock:
                self._refused += 1
        self._tell_callback((finding, raised))

    def report(self, error: Exception) -> None:
        """Call `on_error`."""
        self._report(error)

    def _call_back(self, told: tuple[Finding, bool]) -> None:
        (finding, raised), (_, on_refused, on_timed_out, on_fenced, on_paused, on_resumed) = told, self._callbacks
        try:
            if isinstance(finding, SessionGoesOn):
                if on_resumed is not None:
                    on_resumed(finding)
            elif isinstance(finding, SessionHeld) and on_paused is not None:
                on_paused(finding)
            elif isinstance(finding, EventRefused) and on_refused is not None:
                on_refused(finding)
            elif isinstance(finding, SessionTimedOut) and on_timed_out is not None:
                on_timed_out(finding)
            elif isinstance(finding, SessionFenced) and on_fenced is not None:
                on_fenced(finding)
            elif not raised:
                self._report(finding)
        except Exception as error:  # noqa: BLE001 - a bug of the user's, which `on_error` is for
            self._report(error)
