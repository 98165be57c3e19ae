"""Turns, the exchanges with a session's user, as the rules have them, and the wait between."""

from tests.auditor.decoding import Rejection, Row, producer_hash
from tests.auditor.rules import NEXT_PHASES


def is_waiting(row: Row) -> bool:
    """Return whether a session waits for its user, in Active or through a pause."""
    return bool(row["phase"] == "waiting")


def stop_duration(row: Row, now: int) -> None:
    """Stop the maximum duration, which stands while the session waits for its user."""
    if not is_waiting(row):
        row["max_due_at"] = max(0, row["max_due_at"] - now)


def continue_duration(row: Row, now: int) -> None:
    """Let the maximum duration go on, unless the session waits for its user."""
    if not is_waiting(row):
        row["max_due_at"] += now


def end_other_turn(row: Row, producer: str) -> None:
    """End the turn of another process."""
    row["turn_by"] = row["turn_by"] if row["turn_by"] == producer_hash(producer) else 0


def move_phase(row: Row, producer: str, phase: str, now: int) -> None:
    """Move the phase, or raise `Rejection`: a turn is one process's at a time."""
    before, own = row["phase"], producer_hash(producer)
    if phase not in NEXT_PHASES.get((row["state"], before), ()):
        raise Rejection("illegal_transition" if row["state"] == "Paused" else "phase_order")
    is_begin = phase == "processing" and before != "persisting"
    if (is_begin or phase == "waiting") and row["turn_by"] not in (0, own):
        raise Rejection("phase_order")
    if phase == "waiting":
        if row["state"] != "Paused":
            stop_duration(row, now)
        row["exchanges"], row["turn_by"] = row["exchanges"] + 1, 0
    elif is_begin:
        row["turn_by"] = own
    row["phase"] = phase
    if before == "waiting":
        continue_duration(row, now)
