"""The lock of a session, which no thread waits for in a forked child of the session's process."""

from types import TracebackType

from sessionary.producers.delivery.emitter import Emitter


class SessionLock:
    """The emitter's lock, a context manager. Reentrant.

    A child that is forked while a thread holds the lock has a copy that no thread ever releases.
    """

    __slots__ = ("_emitter", "_lock")

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._lock = emitter.lock

    def __enter__(self) -> None:
        """Wait for the lock. Raises `ClientClosed` in a forked child of the session's process."""
        self._emitter.check_process()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def acquire_now(self) -> bool:
        """Take the lock if it is free, without waiting; return whether it was."""
        return self._lock.acquire(blocking=False)

    def acquire_within(self, seconds: float) -> bool:
        """Take the lock if it is free within so many seconds; return whether it was."""
        return self._lock.acquire(timeout=seconds)

    def release(self) -> None:
        """Release what `acquire_now` or `acquire_within` took."""
        self._lock.release()
