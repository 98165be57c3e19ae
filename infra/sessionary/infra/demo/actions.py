"""One action of a plan, in the client's verbs."""

import time
from collections.abc import Callable
from typing import cast

from sessionary.infra.demo.plan import Action, IllegalEvent
from sessionary.producers import Session
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.events import (
    LlmDecision,
    Payload,
    ResourcesReleased,
    SessionPhaseChanged,
    SessionRecovered,
    StateUpdated,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.ids import derived_id
from sessionary.schemas.limits import MESSAGE_CHARACTERS_MAX
from sessionary.schemas.types import ErrorInfo

BYTES_A_TOKEN = 4
_MODEL = "model-a"
_TRIES_MAX = 3
_USD_MICROS_IN, _USD_MICROS_OUT = 3, 15  # per token
_WORDS = ("session", "agent", "patch", "search", "method", "class", "returns", "value", "error", "test", "line", "file")
_TEXT = " ".join(_WORDS[n * n % 97 % len(_WORDS)] for n in range(4_000))


def filler_text(tokens: int) -> str:
    """Return a text of `tokens` tokens of 4 bytes each."""
    size = tokens * BYTES_A_TOKEN
    return (_TEXT * (size // len(_TEXT) + 1))[:size]


def illegal_event(kind: IllegalEvent) -> Payload:
    """Return an event that an Active session must not send."""
    match kind:
        case "recovered_while_active":
            return SessionRecovered()
        case "version_conflict":
            return StateUpdated(999, 1000, "{}")
        case "unknown_cleanup":
            return ResourcesReleased(derived_id("unknown", "cleanup"), (), None, host_lost=False)
        case "phase_order":
            return SessionPhaseChanged("persisting")


def perform_action(session: Session, action: Action) -> None:
    """Perform any action but `create` and `broken`.

    Blocks if the verb waits for a verdict. Raises what the verb raises.
    """
    match action.verb:
        case "start":
            session.start()
        case "fail_start":
            session.lifecycle.fail_start("invalid_config", "the model's name is not configured")
        case "model_call":
            _model_call(session, action)
        case "tool_call":
            _tool_call(session, action)
        case "update_state":
            # One thread plays many sessions, also while brokers are away.
            session.update_state({**session.state, "step": action.step}, wait=False)
        case "progress":
            session.progress(action.step)
        case "illegal":
            session.emit(illegal_event(cast("IllegalEvent", action.name)))
        case "silence":
            session.lifecycle.detach()
        case _:
            _change_state(session, action)


def _change_state(session: Session, action: Action) -> None:
    match action.verb:
        case "pause":
            session.pause("waits for a person")
        case "resume":
            _retry_verdict(session.resume)
        case "error":
            session.error(ErrorInfo("retryable", "upstream_503", "the model's service is overloaded"))
        case "recover":
            _retry_verdict(session.recover)
        case "give_up":
            session.lifecycle.force_close("no repair in sight")
        case "complete":
            session.complete()
        case "close":
            session.close()
        case "cancel":
            session.lifecycle.cancel("called off")
        case _:
            raise AssertionError(f"no verb of a session is called {action.verb}")


def _model_call(session: Session, action: Action) -> None:
    # A call's tokens are those of its whole context; a turn has at most what was new in it.
    session.message("user", filler_text(action.tokens_in)[:MESSAGE_CHARACTERS_MAX])
    session.emit(LlmDecision(model=_MODEL, output_text=filler_text(action.tokens_out)))
    session.usage(
        model=_MODEL,
        tokens_in=action.tokens_in,
        tokens_out=action.tokens_out,
        model_cost_usd_micros=action.tokens_in * _USD_MICROS_IN + action.tokens_out * _USD_MICROS_OUT,
    )


def _tool_call(session: Session, action: Action) -> None:
    call_id = derived_id(session.session_id, "call", action.step)
    idem_key = derived_id(session.session_id, action.name, action.step)
    session.emit(ToolCallStarted(call_id, action.name, idem_key, "{}", 1, side_effect=False, queryable=False))
    if action.succeeded:
        session.emit(ToolCallSucceeded(call_id, action.name, idem_key, None, None, 1))
    else:
        session.emit(ToolCallFailed(call_id, action.name, idem_key, ErrorInfo("fatal", "not_found", ""), 1))


def _retry_verdict(verb: Callable[[], object]) -> None:
    """Call a verb that waits for a verdict, up to three times.

    The client sends its event only once.
    """
    for left in reversed(range(_TRIES_MAX)):
        try:
            verb()
            return
        except Unavailable as error:
            if left == 0:
                raise
            time.sleep(min(error.retry_after_s, 1.0))
