"""What can happen to the row of a turn."""

from typing import final

from sessionary.schemas.records import MessageState


@final
class MessageTaken:
    """A message takes the row from now on."""

    __slots__ = ("row",)

    def __init__(self, row: MessageState) -> None:
        self.row = row
