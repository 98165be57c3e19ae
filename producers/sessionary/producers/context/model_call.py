"""One call of a model, reported with its tokens, cost, duration and error."""

from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from sessionary.producers.context.reported_block import ReportedBlock, ReportedCall, step_events
from sessionary.producers.context.scope import CallReporter, ModelShare, current_scope
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.errors import ModelTimeout
from sessionary.schemas.events import UsageRecorded

if TYPE_CHECKING:
    from asyncio import Timeout


class ModelCall(ReportedBlock):
    """One call of a model, made by `Session.llm`. Use it once, in `with` or `async with`.

    Set what the model answers; all are 0 before. `async with` never blocks the event loop.

    In a recorded step it may take the session's `model_ms`. If it takes longer, leaving the block
    raises `ModelTimeout`, so the step fails and may be tried again; `async with` cancels it in
    time. The usage of the call that is made instead says so.

    Attributes:
        tokens_in: Tokens of the prompt.
        tokens_out: Tokens of the answer.
        model_cost_usd_micros: Cost, in millionths of a US dollar.
    """

    __slots__ = (
        "_began_s",
        "_call",
        "_model",
        "_share",
        "_timeout",
        "model_cost_usd_micros",
        "tokens_in",
        "tokens_out",
    )

    def __init__(self, reporter: CallReporter, model: str, fields: EnvelopeFields) -> None:
        super().__init__(reporter)
        self.tokens_in = 0
        self.tokens_out = 0
        self.model_cost_usd_micros = 0
        self._model = model
        self._call = ReportedCall(reporter, step_events(f"llm {model}"), fields)
        self._share: ModelShare | None = None
        self._timeout: Timeout | None = None
        self._began_s = 0.0

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._model

    def __enter__(self) -> Self:
        super().__enter__()
        self._take_share()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        late = self._find_late(error)
        super().__exit__(kind, late or error, trace)
        if late is not None:
            raise late
        return False

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._take_share()
        if self._share is not None:
            import asyncio  # loaded already, as this runs; the client for threads does without it

            self._timeout = asyncio.timeout(self._share.limit_ms / 1_000)
            await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        late = None
        if self._timeout is not None:
            try:
                await self._timeout.__aexit__(kind, error, trace)
            except TimeoutError:
                late = self._new_timeout()
        late = late or self._find_late(error)
        await super().__aexit__(kind, late or error, trace)
        if late is not None:
            raise late from error
        return False

    def _take_share(self) -> None:
        scope = current_scope()
        metadata = scope.metadata.get(self._reporter.session_id)
        if scope.place is not None and metadata is not None and scope.place.run_id == metadata.run_id:
            self._share = scope.place.share
        if self._share is not None:
            self._began_s = self._share.now_s()

    def _find_late(self, error: BaseException | None) -> ModelTimeout | None:
        """Return the remark on an answered call, if it took longer than its share."""
        share = self._share
        if error is not None or share is None or (share.now_s() - self._began_s) * 1_000 <= share.limit_ms:
            return None
        return self._new_timeout()

    def _new_timeout(self) -> ModelTimeout | None:
        return None if self._share is None else ModelTimeout(f"model {self._model}", self._share.limit_ms)

    def _report_start(self) -> None:
        self._call.send_start()

    def _inner_metadata(self) -> EnvelopeFields:
        return self._call.inner_metadata

    def _report_end(self, error: BaseException | None) -> None:
        self._call.send_end(error)
        is_retry, retry_of = self._find_retried()
        if self._share is not None and isinstance(error, ModelTimeout):
            self._share.over[self._model] = self._call.inner_metadata.step_id or ""
        if error is None or self.tokens_in or self.tokens_out or self.model_cost_usd_micros:
            usage = UsageRecorded(
                self._model, self.tokens_in, self.tokens_out, self.model_cost_usd_micros, 0, is_retry, retry_of
            )
            self._reporter.send_event(usage, self._call.end_fields)

    def _find_retried(self) -> tuple[bool, str | None]:
        """Return whether this call repeats one that was over its share, and which, if known."""
        if self._share is None:
            return False, None
        retry_of = self._share.over.pop(self._model, None)
        return self._share.is_retry or retry_of is not None, retry_of
