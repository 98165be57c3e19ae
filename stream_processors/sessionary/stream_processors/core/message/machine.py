"""The machine of messages: a row holds a turn, until a later turn takes it.

A turn has no clock, and vanishes with its session. The machine decides on no event: the session's
does (`judge`).
"""

from collections.abc import Sequence

from sessionary.schemas.codec import encode_record, record_headers
from sessionary.schemas.records import MessageContent, MessageState
from sessionary.stream_processors.core.dependants.machine import UnclockedMachine
from sessionary.stream_processors.core.dependants.row_size import content_parts
from sessionary.stream_processors.core.machine import RowKind
from sessionary.stream_processors.core.message.facts import MessageTaken


class MessageMachine(UnclockedMachine[MessageState]):
    """Implements `Machine` for messages."""

    name = "message"
    row_kinds: Sequence[RowKind] = (
        RowKind(
            MessageState,
            live=False,
            prefixes=record_headers(MessageState),
            encode=encode_record,
            parts=content_parts(MessageContent),
            is_child=True,
        ),
    )

    def evolve(self, row: MessageState | None, fact: MessageTaken) -> MessageState:
        """Return the row after a fact."""
        return fact.row
