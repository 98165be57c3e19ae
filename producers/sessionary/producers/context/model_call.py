"""One call of a model, reported with its tokens, cost, duration and error."""

from sessionary.producers.context.call_events import ReportedCall, step_events
from sessionary.producers.context.reported_block import ReportedBlock
from sessionary.producers.context.scope import CallReporter
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.schemas.events import UsageRecorded


class ModelCall(ReportedBlock):
    """One call of a model, made by `Session.llm`. Use it once, in `with` or `async with`.

    Set what the model answers; all are 0 before. `async with` never blocks the event loop.

    Attributes:
        tokens_in: Tokens of the prompt.
        tokens_out: Tokens of the answer.
        model_cost_usd_micros: Cost, in millionths of a US dollar.
    """

    __slots__ = ("_call", "_model", "model_cost_usd_micros", "tokens_in", "tokens_out")

    def __init__(self, reporter: CallReporter, model: str, fields: EnvelopeFields) -> None:
        super().__init__(reporter)
        self.tokens_in = 0
        self.tokens_out = 0
        self.model_cost_usd_micros = 0
        self._model = model
        self._call = ReportedCall(reporter, step_events(f"llm {model}"), fields)

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._model

    def _report_start(self) -> None:
        self._call.send_start()

    def _inner_marks(self) -> EnvelopeFields:
        return self._call.inner_marks

    def _report_end(self, error: BaseException | None) -> None:
        self._call.send_end(error)
        if error is None or self.tokens_in or self.tokens_out or self.model_cost_usd_micros:
            usage = UsageRecorded(
                self._model, self.tokens_in, self.tokens_out, self.model_cost_usd_micros, 0, is_timeout_retry=False
            )
            self._reporter.send_event(usage, self._call.end_fields)


__all__ = ["ModelCall"]
