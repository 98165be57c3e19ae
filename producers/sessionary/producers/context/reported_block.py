"""A block whose start and end are reported, in `with` or `async with`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal, Self

from sessionary.producers.context.scope import CallReporter, added_marks
from sessionary.producers.delivery.emitter import EnvelopeFields


class ReportedBlock(ABC):
    """Base of what a block reports. Use an instance once; `async with` never blocks the loop.

    The events that the session sends in the block have `_inner_marks()`.
    """

    __slots__ = ("_marks", "_reporter")

    def __init__(self, reporter: CallReporter) -> None:
        self._reporter = reporter
        self._marks: AbstractContextManager[None] | None = None

    @abstractmethod
    def _report_start(self) -> None:
        """Send the start. Raises as `Session.emit` does."""

    @abstractmethod
    def _report_end(self, error: BaseException | None) -> None:
        """Send the end; `error` is what the block raised. Raises as `Session.emit` does."""

    @abstractmethod
    def _inner_marks(self) -> EnvelopeFields:
        """Return the marks of the block, once its start was sent."""

    def __enter__(self) -> Self:
        self._report_start()
        self._enter_marks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._leave_marks()
        self._end_quietly(error)
        return False

    async def __aenter__(self) -> Self:
        await start_off_loop(self._reporter, self._report_start, self._end_quietly)
        self._enter_marks()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._leave_marks()
        await send_off_loop(self._reporter, lambda: self._end_quietly(error))
        return False

    def _enter_marks(self) -> None:
        self._marks = added_marks(self._reporter.session_id, self._inner_marks())
        self._marks.__enter__()

    def _leave_marks(self) -> None:
        if self._marks is not None:
            self._marks.__exit__(None, None, None)

    def _end_quietly(self, error: BaseException | None) -> None:
        try:
            self._report_end(error)
        except Exception as failure:  # of any kind: the caller must see what the body raised
            if error is None:
                raise
            self._reporter.on_error(failure)


async def start_off_loop(
    reporter: CallReporter, start: Callable[[], None], end: Callable[[BaseException], None]
) -> None:
    """Call `start`, in a thread if it may block; raises what it raises.

    If the caller is cancelled meanwhile, `end` follows it, with what cancelled the caller.
    """
    if reporter.may_block:
        from sessionary.producers.process.off_loop import open_or_leave  # loads asyncio, as this runs

        await open_or_leave(start, lambda _, error: end(error))
    else:
        start()


async def send_off_loop(reporter: CallReporter, send: Callable[[], None]) -> None:
    """Call `send`, in a thread if it may block, even if the caller is cancelled meanwhile.

    Raises what it raises.
    """
    if reporter.may_block:
        from sessionary.producers.process.off_loop import run_anyway  # loads asyncio, as this runs

        await run_anyway(send, reporter.on_error)
    else:
        send()
