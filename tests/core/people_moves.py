"""Random moves of people: operators who step in, and agents that ask them."""

from random import Random
from typing import Any

from sessionary.schemas.records import SessionState
from tests.support.event_factory import EventFactory, snapshot

_PRINCIPALS = ["alice", "bob", None]
_HOLDS_MS = [None, None, 999, 1_000, 5_000, 60_000, 2_592_000_001]
_SHORT_MS = [0, 1, 5_000, 15_000, 60_000, None]


def draw_operator_event(rng: Random, row: SessionState) -> tuple[str, dict[str, Any]]:
    """Return an event that the control API may send to a session, sensible for its state or not."""
    question_id = None if row.question is None else row.question.question_id
    hold_ms = _HOLDS_MS[row.audit_seq % len(_HOLDS_MS)]
    answer = {
        "approved": rng.choice([True, False]),
        "question_id": rng.choice([None, None, question_id, "another"]),
        "message": rng.choice([None, "fine"]),
    }
    moves: list[tuple[str, dict[str, Any]]] = [
        ("session_paused", {"snapshot": None, "reason": rng.choice([None, "look at it"]), "hold_ms": hold_ms}),
        ("session_resumed", {"message": rng.choice([None, "go on"])}),
        ("session_resumed", answer),
        ("session_terminated", {"reason": "cancelled"}),
    ]
    if row.state == "Paused":
        moves += [("session_resumed", {}), ("session_resumed", answer), ("session_paused", {"snapshot": None})]
    if row.state == "Active":
        moves += [("session_paused", {"snapshot": None})] * 4
    event_type, fields = rng.choice(moves)
    return event_type, {**fields, "as_operator": rng.random() < 0.9}


def draw_question(rng: Random) -> dict[str, Any]:
    """Return the fields of a pause with which an agent asks."""
    return {"kind": "review", "snapshot": snapshot("asked"), "question": "Go on?", "answer_ms": rng.choice(_SHORT_MS)}


def draw_actor(rng: Random) -> str | None:
    """Return the principal who steps in; a foreign writer may name none."""
    return rng.choice(_PRINCIPALS)


def draw_answers(rng: Random) -> list[dict[str, Any]]:
    """Return the fields of what comes after a question: no answers, and mostly one."""
    by_operator = {"approved": rng.choice([True, False]), "as_operator": True, "message": rng.choice([None, "no"])}
    wrong: list[dict[str, Any]] = [{}, {"approved": True}, {**by_operator, "question_id": "another"}]
    return [*rng.sample(wrong, rng.randint(0, 3)), *([by_operator] if rng.random() < 0.6 else [])]


def asking_story(rng: Random) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a new session up to a question, and what comes after that."""
    asked = {**draw_question(rng), "snapshot": snapshot("asked", parent="first")}
    phases = [("session_phase_changed", {"phase": phase}) for phase in ("validating", "connecting")]
    begun: list[tuple[str, dict[str, Any]]] = [("session_created", {}), *phases, ("session_started", {})]
    answers = [("session_resumed", {"snapshot_id": None, **fields}) for fields in draw_answers(rng)]
    return [*begun, ("session_paused", asked), *answers]


def operator_of(agent: EventFactory, rng: Random) -> EventFactory:
    """Return what sends one event of an operator to an agent's session, as a worker does."""
    hand = EventFactory("s", agent.key.tenant_id, service="control-api", producer=f"hand-{rng.getrandbits(40)}")
    hand.key = agent.key
    return hand
