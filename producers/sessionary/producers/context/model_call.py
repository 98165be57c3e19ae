"""One call of a model, reported with its tokens, cost, duration and error."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from sessionary.producers.context.reported_block import ReportedBlock, ReportedCall, step_events
from sessionary.producers.context.scope import AskedCall, CallReporter, ModelShare, current_scope
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.errors import Invalid, ModelSlow, ModelTimeout
from sessionary.producers.ports import OnError
from sessionary.schemas.events import SessionActivity, UsageRecorded
from sessionary.schemas.limits import NAME_CHARACTERS_MAX, NUMBER_MAX, characters_max

if TYPE_CHECKING:
    from asyncio import Timeout

_SLOW = "model_slow"  # kind of the activity
_FIGURES = (
    *("tokens_in", "tokens_out", "model_cost_usd_nanos", "tool_cost_usd_nanos"),
    *("cache_read_input_tokens", "cache_write_input_tokens", "reasoning_output_tokens", "time_to_first_token_ms"),
    "retries",
)
_MAY_MISS = frozenset(_FIGURES[4:])  # many providers leave them out: None is no fault
_TEXTS = ("model", "retry_of", "response_id")


def send_usage(usage: UsageRecorded, send: Callable[[UsageRecorded], str], on_error: OnError) -> str:
    """Send a usage by `send`; of a value that no event can have, `on_error` is told.

    Such a figure is rounded, or counts as 0; another value is left out. Returns the event's id.
    Raises as `send` does.
    """
    try:
        return send(usage)
    except Invalid:  # an agent loses no answer for what a library said of it
        given = usage._asdict()
        counted = {name: _count(name, given[name]) for name in _FIGURES}
        texts = {name: given[name] for name in _TEXTS if _is_text(name, given[name])}
        is_retry = usage.is_timeout_retry is True
        held: dict[str, Any] = {name: number for name, (number, _) in counted.items()}
        held |= {**dict.fromkeys(_TEXTS), **texts, "is_timeout_retry": is_retry}
        sent = send(usage._replace(**held))
    wrong = [
        f"{name} is {_show(given[name])} and counts as {number}"
        for name, (number, is_it) in counted.items()
        if not is_it
    ]
    wrong += [f"{name} is {_show(given[name])} and is left out" for name in _TEXTS if name not in texts]
    if given["is_timeout_retry"] is not is_retry:
        wrong.append(f"is_timeout_retry is {_show(given['is_timeout_retry'])} and counts as False")
    if wrong:
        what = f"the usage of {texts.get('model') or 'a tool'}: {', '.join(wrong)}"
        on_error(Invalid("invalid_value", f"{what}; report whole numbers from 0 to {NUMBER_MAX}, ids as texts"))
    return sent


def _count(name: str, value: Any) -> tuple[int | None, bool]:
    """Return what a figure counts as, and whether it is that: 3.0 and numpy's 3 are."""
    nothing = None if name == "time_to_first_token_ms" else 0
    if value is None and name in _MAY_MISS:
        return nothing, True
    try:
        number = int(round(value))  # noqa: RUF046 - by `round` alone, a number of a library stays its own
        is_it = bool(number == value) or name == "time_to_first_token_ms"  # times are measured
        return (number, is_it) if 0 <= number <= NUMBER_MAX else (nothing, False)
    except Exception:  # noqa: BLE001 - the value is of any type, and so is what it raises
        return nothing, False


def _is_text(name: str, value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= (characters_max("UsageRecorded", name) or 0))


def _is_set(value: Any) -> bool:
    return value is not None and (not isinstance(value, int) or value != 0)


def _show(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 - as above
        return f"a {type(value).__name__}"


class ModelCall(ReportedBlock):
    """One call of a model, made by `Session.llm`. Use it once, in `with` or `async with`.

    Set what the model answers; all are 0 or None before. `async with` never blocks the event loop.

    A figure that is no whole number, such as the None of a stream, is rounded or counts as 0, and a
    text that no event can have is left out: `on_error` gets an `Invalid`, and the block raises
    nothing. None is no fault of figures that many providers leave out.

    A call that takes longer than the session's `model_ms` is slow: its answer is kept, the activity
    `model_slow` says how long it took, and `on_error` gets a `ModelSlow`. Heartbeats keep the
    session alive meanwhile.

    A call that takes longer than the setting `model_call_limit_s` (10 minutes) fails: `async with`
    cancels it, and leaving `with` raises `ModelTimeout`. A step that it was in may be tried again;
    the usage of the call that is made instead says so.

    Attributes:
        tokens_in: Tokens of the prompt, with those that a cache gave or took.
        tokens_out: Tokens of the answer, with those of reasoning.
        model_cost_usd_nanos: Cost, in billionths of a US dollar.
        cache_read_input_tokens: Tokens of the prompt that the provider had in its cache.
        cache_write_input_tokens: Tokens of the prompt that the provider wrote into its cache.
        reasoning_output_tokens: Tokens of the answer that were spent on reasoning.
        response_id: The answer's id at the provider.
        time_to_first_token_ms: Time to the first token in ms; see `mark_first_token`.
        retries: Requests that the model's library repeated before it had the answer.
        is_timeout_retry: The call repeats one that timed out. In a step that is tried again since a
            call took too long, the client knows this itself.
        retry_of: The `step_id` of the repeated call.
    """

    __slots__ = (
        "_began_s",
        "_call",
        "_model",
        "_real_s",
        "_share",
        "_step_name",
        "_timeout",
        "_took_ms",
        "cache_read_input_tokens",
        "cache_write_input_tokens",
        "is_timeout_retry",
        "model_cost_usd_nanos",
        "reasoning_output_tokens",
        "response_id",
        "retries",
        "retry_of",
        "time_to_first_token_ms",
        "tokens_in",
        "tokens_out",
    )

    def __init__(self, reporter: CallReporter, model: str, fields: EnvelopeFields) -> None:
        super().__init__(reporter)
        self.tokens_in = 0
        self.tokens_out = 0
        self.model_cost_usd_nanos = 0
        self.cache_read_input_tokens: int | None = 0
        self.cache_write_input_tokens: int | None = 0
        self.reasoning_output_tokens: int | None = 0
        self.response_id: str | None = None
        self.time_to_first_token_ms: float | None = None
        self.retries: int | None = 0
        self.is_timeout_retry = False
        self.retry_of: str | None = None
        self._model = f"{model}"[:NAME_CHARACTERS_MAX]
        self._step_name = f"llm {model}"[:NAME_CHARACTERS_MAX]
        self._call = ReportedCall(reporter, step_events(self._step_name), fields)
        self._share: ModelShare | None = None
        self._timeout: Timeout | None = None
        self._began_s = self._real_s = 0.0
        self._took_ms = 0

    def __repr__(self) -> str:
        return f"<ModelCall {self._model}, tokens_in={self.tokens_in}, tokens_out={self.tokens_out}>"

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._model

    @property
    def step_id(self) -> str:
        """Id that the call's events share."""
        return self._call.inner_metadata.step_id or ""

    def mark_first_token(self) -> None:
        """Take the time to the first token of a streamed answer; the first of several counts.

        for chunk in stream:
            call.mark_first_token()
        """
        if self.time_to_first_token_ms is None:
            self.time_to_first_token_ms = self._passed_s() * 1_000

    def __enter__(self) -> Self:
        super().__enter__()
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        late = self._measure(error)
        super().__exit__(kind, late or error, trace)
        if late is not None:
            raise late
        return False

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        import asyncio  # loaded already, as this runs; the client for threads does without it

        self._timeout = asyncio.timeout(self._reporter.model_limit_s)
        await self._timeout.__aenter__()
        self._begin()
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
        late = self._measure(late or error) or late
        await super().__aexit__(kind, late or error, trace)
        if late is not None:
            raise late from error
        return False

    def _begin(self) -> None:
        if (place := current_scope().place_in(self._reporter.session_id)) is not None:
            self._share = place.share
        self._began_s, self._real_s = self._reporter.waits.now_s(), time.monotonic()

    def _passed_s(self) -> float:
        """Return the time since the call began; a clock of tests may stand still meanwhile."""
        return max(self._reporter.waits.now_s() - self._began_s, time.monotonic() - self._real_s)

    def _measure(self, error: BaseException | None) -> ModelTimeout | None:
        """Take the call's duration; return the error of an answered call that took too long."""
        waits, limit_ms = self._reporter.waits, self._reporter.model_limit_s * 1_000
        took_s, real_s = waits.now_s() - self._began_s, time.monotonic() - self._real_s
        if waits.pause is not None and real_s > took_s and real_s * 1_000 > min(self._reporter.model_ms(), limit_ms):
            waits.pause(real_s - took_s)  # a clock of tests, which stands still in a call that is not slow
            took_s = real_s
        self._took_ms = round(took_s * 1_000)
        return self._new_timeout() if error is None and took_s * 1_000 > limit_ms else None

    def _new_timeout(self) -> ModelTimeout:
        return ModelTimeout(f"model {self._model}", round(self._reporter.model_limit_s * 1_000))

    def _report_start(self) -> None:
        if (answers := self._reporter.answers) is not None:
            place = current_scope().names_in(self._reporter.session_id)
            answers.answer(AskedCall("block", self._step_name, None, writes=False, execute=lambda: None, place=place))
        self._call.send_start()

    def _inner_metadata(self) -> EnvelopeFields:
        return self._call.inner_metadata

    def _report_end(self, error: BaseException | None) -> None:
        self._call.send_end(error, self._took_ms)
        self._tell_slow()
        is_retry, retry_of = self._find_retried()
        if self._share is not None and isinstance(error, ModelTimeout):
            self._share.over[self._model] = self.step_id
        details = (
            *(self.cache_read_input_tokens, self.cache_write_input_tokens, self.reasoning_output_tokens),
            *(self.response_id, self.time_to_first_token_ms, self.retries),
        )
        if error is None or any(map(_is_set, (self.tokens_in, self.tokens_out, self.model_cost_usd_nanos, *details))):
            marks = is_retry or self.is_timeout_retry, retry_of if self.retry_of is None else self.retry_of
            given: Any = (self._model, self.tokens_in, self.tokens_out, self.model_cost_usd_nanos, 0, *marks, *details)
            reporter, fields = self._reporter, self._call.end_fields
            send_usage(UsageRecorded(*given), lambda usage: reporter.send_event(usage, fields), reporter.on_error)

    def _tell_slow(self) -> None:
        took_ms, limit_ms = self._took_ms, self._reporter.model_ms()
        if took_ms <= limit_ms:
            return
        if self._reporter.is_active():
            text = f"model {self._model} took {took_ms / 1_000:g} s, longer than model_ms ({limit_ms / 1_000:g} s)"
            self._reporter.send_event(SessionActivity(_SLOW, text), self._call.end_fields)
        self._reporter.on_error(ModelSlow(self._reporter.session_id, self._model, took_ms, limit_ms))

    def _find_retried(self) -> tuple[bool, str | None]:
        """Return whether this call repeats one that was over its share, and which, if known."""
        if self._share is None:
            return False, None
        retry_of = self._share.over.pop(self._model, None)
        return self._share.is_retry or retry_of is not None, retry_of
