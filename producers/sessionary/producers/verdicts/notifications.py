"""Notifies the user's callbacks of changes to sessions and events. Thread-safe."""

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from sessionary.producers.errors import EventRejected, ProducerError, SessionFenced, SessionHeld, SessionTimeout
from sessionary.producers.ports import OnError
from sessionary.producers.process.guards import guard_callback

OnRejected = Callable[[EventRejected], None]
"""Called once for each rejected event, on any thread. Must not block for long."""

OnTimedOut = Callable[[SessionTimeout], None]
"""Called if a clock of a session has fired, on any thread. Must not block for long."""

OnFenced = Callable[[SessionFenced], None]
"""Called if another process took a session over, on any thread. Must not block for long."""


class SessionGoesOn(NamedTuple):
    """A session that others had paused is Active again, and its holder continues.

    Attributes:
        session_id: The session.
        epoch: The epoch in which the holder's events are sent from now on.
        reason_code: Why the session resumed: `resumed`, `approved`, `denied` or `expired`.
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
    on_rejected: OnRejected | None = None
    on_timed_out: OnTimedOut | None = None
    on_fenced: OnFenced | None = None
    on_paused: OnPaused | None = None
    on_resumed: OnResumed | None = None


class Notifications:
    """Calls the callbacks, and counts rejected events. Ends no thread, whatever a callback raises.

    An `Exception` goes to `on_error`. Others, such as `SystemExit`, are logged, and so are those
    that `on_error` raises. A `KeyboardInterrupt` in the main thread is the user's own and passes.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._report = guard_callback(callbacks.on_error)
        self._notify_callback = guard_callback(self._call_back)
        self._lock = Lock()
        self._rejected = 0

    @property
    def rejected(self) -> int:
        """How many delivered events were rejected, as far as the client was notified."""
        return self._rejected

    def notify(self, finding: Finding, *, raised: bool = False) -> None:
        """Call the callback of a finding; `on_error` if there is none, unless a verb raised it.

        A resumed session is no error: without a callback it is not reported.
        """
        if isinstance(finding, EventRejected):
            with self._lock:
                self._rejected += 1
        self._notify_callback((finding, raised))

    def report(self, error: Exception) -> None:
        """Call `on_error`."""
        self._report(error)

    def _call_back(self, reported: tuple[Finding, bool]) -> None:
        (finding, raised), (_, on_rejected, on_timed_out, on_fenced, on_paused, on_resumed) = reported, self._callbacks
        try:
            if isinstance(finding, SessionGoesOn):
                if on_resumed is not None:
                    on_resumed(finding)
            elif isinstance(finding, SessionHeld) and on_paused is not None:
                on_paused(finding)
            elif isinstance(finding, EventRejected) and on_rejected is not None:
                on_rejected(finding)
            elif isinstance(finding, SessionTimeout) and on_timed_out is not None:
                on_timed_out(finding)
            elif isinstance(finding, SessionFenced) and on_fenced is not None:
                on_fenced(finding)
            elif not raised:
                self._report(finding)
        except Exception as error:  # noqa: BLE001 - a bug of the user's, which `on_error` is for
            self._report(error)
