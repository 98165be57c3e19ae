"""A block whose start and end are reported, in `with` or `async with`."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from sessionary.producers.context.error_info import ending_of, to_error_info
from sessionary.producers.context.scope import CallReporter, added_metadata, current_scope
from sessionary.producers.delivery.emitter import NO_FIELDS, EnvelopeFields
from sessionary.schemas.events import (
    Payload,
    StepFailed,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.limits import NAME_CHARACTERS_MAX
from sessionary.schemas.types import ErrorInfo

# A call as events: its start, and its end with duration or error.


Output = tuple[str | None, str | None]
"""A call's result as JSON, and the id of the artifact that has it if it is large; if it is kept."""
NO_OUTPUT: Final[Output] = (None, None)


class CallEvents(NamedTuple):
    """The payloads of one call.

    Attributes:
        started: Payload for the start; takes the call's input as JSON, if it is kept.
        succeeded: Payload for a success; takes the duration in ms, and the output.
        failed: Payload for a failure; takes the error and the duration in ms.
        step_id: The id of the step, if the call is one.
    """

    started: Callable[[str | None], Payload]
    succeeded: Callable[[int, Output], Payload]
    failed: Callable[[ErrorInfo, int], Payload]
    step_id: str | None = None


def tool_events(name: str, *, side_effect: bool) -> CallEvents:
    """Return the events of a tool call. The end is accepted while the session is held, too."""
    call_id, tool = str(uuid.uuid4()), name[:NAME_CHARACTERS_MAX]
    return CallEvents(
        lambda given: ToolCallStarted(
            call_id, tool, call_id, given or "{}", 1, side_effect=side_effect, queryable=False
        ),
        lambda took_ms, output: ToolCallSucceeded(call_id, tool, call_id, *output, 1, took_ms),
        lambda error, took_ms: ToolCallFailed(call_id, tool, call_id, error, 1, took_ms),
    )


def step_events(name: str) -> CallEvents:
    """Return the events of work that is reported as a step, with a new step id.

    The attempt is 0: a run keeps no record of such a step, so it may happen any number of times.
    """
    step = name[:NAME_CHARACTERS_MAX]
    return CallEvents(
        lambda given: StepStarted(step, 0, given),
        lambda took_ms, output: StepSucceeded(step, 0, output[0], took_ms),
        lambda error, _: StepFailed(step, 0, error),
        str(uuid.uuid4()),
    )


class ReportedCall:
    """Reports one call: `send_start`, then `send_end`."""

    def __init__(self, reporter: CallReporter, events: CallEvents, fields: EnvelopeFields = NO_FIELDS) -> None:
        self._reporter = reporter
        self._events = events
        is_tool, decision = events.step_id is None, current_scope().decision_in(reporter.session_id)
        if not is_tool and fields.step_id is None:
            fields = fields._replace(step_id=events.step_id)
        elif is_tool and fields.causation_id is None and decision is not None:
            fields = fields._replace(causation_id=decision)
        self._fields = fields
        self._start_id: str | None = None
        self._began_s = 0.0

    @property
    def end_fields(self) -> EnvelopeFields:
        """The fields of the call's last events: caused by the first one."""
        return self._fields._replace(causation_id=self._start_id)

    @property
    def inner_metadata(self) -> EnvelopeFields:
        """The metadata of events during the call."""
        return EnvelopeFields(step_id=self._fields.step_id, causation_id=self._start_id)

    def send_start(self, given: str | None = None) -> None:
        """Report the start; `given`: the call's input, as JSON. Raises as `Session.emit` does."""
        self._began_s = time.monotonic()
        self._start_id = self._reporter.send_event(self._events.started(given), self._fields)

    def send_end(
        self, error: BaseException | None, took_ms: int = 0, keep_output: Callable[[], Output] = lambda: NO_OUTPUT
    ) -> None:
        """Report the end, if the start was reported. Raises as `Session.emit` does.

        `took_ms`: the duration by another clock than this machine's; the longer one counts.
        `keep_output` returns the output of a call that succeeded.
        The processor accepts the end of a step in state Active only, so in any other state it is
        not sent.
        """
        took_ms = max(round((time.monotonic() - self._began_s) * 1_000), took_ms)
        if self._start_id is None or (self._events.step_id is not None and not self._reporter.is_active()):
            return
        if ending_of(error) == "done":
            payload = self._events.succeeded(took_ms, keep_output())
        else:
            assert error is not None
            payload = self._events.failed(to_error_info(error), took_ms)
        self._reporter.send_event(payload, self.end_fields)


class ReportedBlock(ABC):
    """Base of reported blocks. Use an instance once; `async with` never blocks the loop.

    The events that the session sends in the block have `_inner_metadata()`.
    """

    __slots__ = ("_metadata", "_reporter")

    def __init__(self, reporter: CallReporter) -> None:
        self._reporter = reporter
        self._metadata: AbstractContextManager[None] | None = None

    @abstractmethod
    def _report_start(self) -> None:
        """Send the start. Raises as `Session.emit` does."""

    @abstractmethod
    def _report_end(self, error: BaseException | None) -> None:
        """Send the end; `error` is the block's exception. Raises as `Session.emit` does."""

    @abstractmethod
    def _inner_metadata(self) -> EnvelopeFields:
        """Return the metadata of the block, once its start was sent."""

    def __enter__(self) -> Self:
        self._report_start()
        self._enter_metadata()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._leave_metadata()
        self._end_quietly(error)
        return False

    async def __aenter__(self) -> Self:
        await start_off_loop(self._reporter, self._report_start, self._end_quietly)
        self._enter_metadata()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._leave_metadata()
        await end_off_loop(self._reporter, self._end_quietly, error)
        return False

    def _enter_metadata(self) -> None:
        self._metadata = added_metadata(self._reporter.session_id, self._inner_metadata())
        self._metadata.__enter__()

    def _leave_metadata(self) -> None:
        if self._metadata is not None:
            self._metadata.__exit__(None, None, None)

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
    """Call `start`, in a thread if it may block; raises as `start` does.

    If the caller is cancelled meanwhile, `end` follows it, with what cancelled the caller.
    """
    if reporter.may_block:
        from sessionary.producers.process.off_loop import open_or_leave  # loads asyncio, as this runs

        await open_or_leave(start, lambda _, error: end(error))
    else:
        start()


def call_off_loop(reporter: CallReporter, call: Callable[[], None]) -> None:
    """Call `call`, which raises nothing, in a thread if it may block; do not wait for it."""
    if reporter.may_block:
        import asyncio  # loaded, as this runs

        asyncio.get_running_loop().run_in_executor(None, call)
    else:
        call()


async def end_off_loop(
    reporter: CallReporter, end: Callable[[BaseException | None], None], error: BaseException | None
) -> None:
    """Call `end`, in a thread if it may block, even if the caller is cancelled meanwhile.

    `error`: what the block was left by, which `end` gets. Raises as `end` does.
    """
    if reporter.may_block and not isinstance(error, GeneratorExit):  # a closed coroutine can wait for nothing
        from sessionary.producers.process.off_loop import run_anyway  # loads asyncio, as this runs

        await run_anyway(lambda: end(error), reporter.on_error)
    else:
        end(error)
