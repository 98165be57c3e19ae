"""What followers of a session are told. It is read once per commit, however many follow it."""

import json
from typing import Any

from sessionary.schemas.records import SessionState
from sessionary.stream_processors.api.session_document import session_document
from sessionary.stream_processors.api.session_questions import AskedOwner

END = b"event: end\ndata: {}\n\n"


class ToldSession:
    """One session of a partition, which must be readable whenever a method is called."""

    def __init__(self, asked: AskedOwner) -> None:
        """`asked`: from `SessionQuestions.ask_to_follow`, so of the tenant of a caller's token."""
        self._asked = asked
        self._key = asked.question.key.encoded()
        self._read_at = self._written_at = -1  # numbers of commits
        self._row: SessionState | None = None
        self._seen: tuple[Any, ...] | None = None
        self._message = END

    def read(self) -> tuple[Any, ...] | None:
        """Return what makes a message if it changes, as it is now; None if the session is archived.

        Signs of life and deadlines are not in it.
        """
        owner = self._asked.owner
        if self._read_at != owner.commits:
            row = owner.state.rows.get(self._key)
            self._row = row if isinstance(row, SessionState) else None
            self._seen = None if self._row is None else _seen_of(self._row)
            self._read_at = owner.commits
        return self._seen

    def message(self) -> bytes:
        """Return the event that tells what was read last."""
        if self._row is None:
            return END
        if self._written_at != self._read_at:
            question, owner = self._asked
            place = f"{question.partition}:{owner.state.position.next_offset - 1}"
            document = json.dumps(session_document(self._row, self._asked))
            self._message = f"id: {place}\nevent: state\ndata: {document}\n\n".encode()
            self._written_at = self._read_at
        return self._message


def _seen_of(row: SessionState) -> tuple[Any, ...]:
    return (
        *(row.state, row.phase, row.reason_code, row.epoch, row.version),
        *(row.owner_service, row.agent_id, row.holder),
        *(row.state_schema_version, row.state_json, row.snapshot.snapshot_id),
        *(row.limits, tuple(row.data_classes)),
    )
