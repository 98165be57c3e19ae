"""What can happen to the row of a turn."""

from typing import NamedTuple

from sessionary.schemas.records import MessageState


class MessageTaken(NamedTuple):
    """A message takes the row from now on."""

    row: MessageState


__all__ = ["MessageTaken"]
