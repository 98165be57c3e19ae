"""What a background session sends in its turns: work, steps and reserved tool calls.

Some of it is rejected on purpose: a second reservation, and a resolution that comes too early.
"""

from typing import Any

from sessionary.producers import Session
from sessionary.schemas.events import (
    Payload,
    StepStarted,
    StepSucceeded,
    ToolCallResolved,
    ToolCallStarted,
    ToolCallSucceeded,
)

TURNS_PER_ROUND = 11
_TEXT = "some text of the agent " * 20


def emit_turn(session: Session, turn: int, *, holds_run: bool) -> None:
    """Send the event of a turn.

    With `holds_run` the call that is lost has a side effect, so its run waits for the outcome.
    """
    round_, place = divmod(turn, TURNS_PER_ROUND)
    match place:
        case 0:
            session.usage(model="m", tokens_in=100, tokens_out=20, model_cost_usd_nanos=5)
        case 1:
            session.progress(turn)
        case 2:
            session.activity("llm", _TEXT)
        case _:
            session.emit(_payload(round_, place, holds_run))


def _payload(round_: int, place: int, holds_run: bool) -> Payload:
    step = f"step-{round_}"
    reported, lost = _names(f"reported-{round_}"), _names(f"lost-{round_}")
    reserved = ToolCallStarted(**reported, args_json="{}", try_number=1, side_effect=True, queryable=True)
    payloads: tuple[Payload, ...] = (
        StepStarted(step, 1, input_json="{}"),
        reserved,
        reserved,  # rejected: it is in progress
        ToolCallSucceeded(**reported, result_json=f'"{_TEXT * 3}"', artifact_id=None, try_number=1),
        reserved,  # rejected: it succeeded
        StepSucceeded(step, 1, output_json=f'"{_TEXT * 3}"'),
        ToolCallStarted(**lost, args_json="{}", try_number=1, side_effect=holds_run, queryable=True, limit_ms=1),
        ToolCallResolved(**lost, outcome="succeeded", result_json="{}", resolved_by="the tool"),
    )
    return payloads[place - 3]


def _names(idem_key: str) -> dict[str, Any]:
    return {"tool_call_id": f"id of {idem_key}", "tool_name": "order", "idem_key": idem_key}
