"""The oracle's model of a conversation: its turns and their rows."""

from tests.auditor.decoding import Row

TURNS_KEPT = 200
CONTENT_MAX = 16_384


def is_too_long(kind: str, fields: Row) -> bool:
    """Tell whether an event is a message that is longer than a turn may be."""
    return kind == "message_appended" and fields["content"] is not None and len(fields["content"]) > CONTENT_MAX


def next_turn(row: Row, envelope: Row, fields: Row, now: int) -> Row:
    """Return the row of the turn after the last one of a session, `row`."""
    return {
        **{name: row[name] for name in ("tenant", "session")},
        **{name: fields[name] for name in ("role", "name", "content", "artifact_id")},
        "kind": "MessageState",
        "turn": row["turns"] + 1,
        "run_id": envelope["run_id"] or None,
        "agent_id": envelope["agent_id"],
        "service_id": envelope["service_id"],
        "at": now,
        "state": "",
    }


def turn_name(turn: int) -> str:
    """Return what the key of a turn's row is derived from: a later turn has the same row."""
    return str(turn % TURNS_KEPT)
