"""One call of a model, reported with its tokens, cost, duration and error."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal, Self

from sessionary.producers.context.call_events import ReportedCall, step_events
from sessionary.producers.context.scope import CallReporter, added_marks
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.schemas.events import UsageRecorded


class ModelCall:
    """One call of a model, made by `Session.llm`. Use it once, in `with` or `async with`.

    Set what the model answers; all are 0 before. `async with` never blocks the event loop.

    Attributes:
        tokens_in: Tokens of the prompt.
        tokens_out: Tokens of the answer.
        model_cost_usd_micros: Cost, in millionths of a US dollar.
    """

    __slots__ = ("_call", "_marks", "_model", "_reporter", "model_cost_usd_micros", "tokens_in", "tokens_out")

    def __init__(self, reporter: CallReporter, model: str, fields: EnvelopeFields) -> None:
        self.tokens_in = 0
        self.tokens_out = 0
        self.model_cost_usd_micros = 0
        self._model = model
        self._reporter = reporter
        self._call = ReportedCall(reporter, step_events(f"llm {model}"), fields)
        self._marks: AbstractContextManager[None] | None = None

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._model

    def __enter__(self) -> Self:
        self._call.send_start()
        self._enter_marks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._leave_marks()
        self._send_end(error)
        return False

    async def __aenter__(self) -> Self:
        await self._run(self._call.send_start)
        self._enter_marks()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._leave_marks()
        await self._run(lambda: self._send_end(error))
        return False

    async def _run(self, send: Callable[[], None]) -> None:
        if self._reporter.may_block:
            import asyncio  # loaded already, as this runs; the client for threads does without it

            await asyncio.to_thread(send)
        else:
            send()

    def _enter_marks(self) -> None:
        self._marks = added_marks(self._reporter.session_id, self._call.inner_marks)
        self._marks.__enter__()

    def _leave_marks(self) -> None:
        if self._marks is not None:
            self._marks.__exit__(None, None, None)

    def _send_end(self, error: BaseException | None) -> None:
        try:
            self._call.send_end(error)
            if error is None or self.tokens_in or self.tokens_out or self.model_cost_usd_micros:
                usage = UsageRecorded(
                    self._model, self.tokens_in, self.tokens_out, self.model_cost_usd_micros, 0, is_timeout_retry=False
                )
                self._reporter.send_event(usage, self._call.end_fields)
        except Exception as failure:  # of any kind: the caller must see what the body raised
            if error is None:
                raise
            self._reporter.on_error(failure)


__all__ = ["ModelCall"]
