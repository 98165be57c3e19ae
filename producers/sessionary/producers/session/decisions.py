"""Records decisions, and lets them be the cause of what follows."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Self

from sessionary.producers.context.scope import EventMetadata, added_metadata, envelope_fields
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.producers.process.safe_text import to_json_text
from sessionary.producers.session.core import SessionCore
from sessionary.schemas.events import LlmDecision
from sessionary.schemas.types import Candidate


class ModelUse(NamedTuple):
    """What is known of the model that decided; `parameters` as JSON can hold them."""

    model: str | None
    prompt_id: str | None
    prompt_version: str | None
    parameters: Json
    tokens_in: int
    tokens_out: int
    model_cost_usd_nanos: int


class Decision:
    """A recorded decision, made by `Session.decision`. `with` lets it be the cause of a block.

    The tool calls in the block name it as their cause, also those within steps. So do the other
    events of the block, unless they have a nearer cause. Use the block once.

    Attributes:
        decision_id: Id of the event that records it.
    """

    __slots__ = ("_block", "_session_id", "decision_id")

    def __init__(self, recorded: tuple[str, str]) -> None:
        """`recorded`: the session's id and the event's."""
        self._session_id, self.decision_id = recorded
        self._block: AbstractContextManager[None] | None = None

    def __repr__(self) -> str:
        return f"<Decision {self.decision_id}>"

    def __enter__(self) -> Self:
        fields = EnvelopeFields(causation_id=self.decision_id)
        self._block = added_metadata(self._session_id, fields, decision=self.decision_id)
        self._block.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._block is not None:
            self._block.__exit__(None, None, None)


def record_decision(
    core: SessionCore,
    choice: str | None,
    options: tuple[Mapping[str, float] | None, float | None, Sequence[str]],
    why: tuple[Json, str | None],
    use: ModelUse,
    metadata: EventMetadata,
) -> tuple[str, str]:
    """Send a decision; return the session's id and the event's. Raises as `Session.decision` does.

    `options`: candidates, threshold and tools. `why`: inputs, and the reasoning for people.
    """
    (candidates, threshold, tools), (inputs, reason) = options, why
    if isinstance(tools, str):
        raise Invalid("invalid_value", f"tools is {tools!r:.80}: give the names of the tools in a list")
    if candidates is not None and not isinstance(candidates, Mapping):
        raise Invalid("invalid_value", f"candidates is {candidates!r:.80}: give a mapping of names to scores")
    decision = LlmDecision(
        use.model,
        tuple(tools),
        None if inputs is None else to_json_text(inputs, "inputs"),
        [Candidate(name, _checked_score(name, score)) for name, score in (candidates or {}).items()],
        None if threshold is None else _checked_score("threshold", threshold),
        choice,
        reason,
        use.prompt_id,
        use.prompt_version,
        None if use.parameters is None else to_json_text(use.parameters, "parameters"),
        use.tokens_in,
        use.tokens_out,
        use.model_cost_usd_nanos,
    )
    return core.session_id, core.send_event(decision, envelope_fields(metadata))


def _checked_score(name: str, score: float) -> float:
    try:
        return float(score)
    except OverflowError:
        what = f"the score of {name!r:.80} is an integer beyond the range of numbers: give a smaller one"
        raise Invalid("invalid_value", what) from None
    except (TypeError, ValueError):
        raise Invalid("invalid_value", f"the score of {name!r:.80} is {score!r:.80}: give a number") from None
