"""What can happen to a reserved tool call, and what its session hears. Times are ms of log time."""

from typing import NamedTuple, final

from sessionary.stream_processors.core.call.transitions import CallRow


@final
class CallMoved:
    """An event made the call, or changed it."""

    __slots__ = ("row",)

    def __init__(self, row: CallRow) -> None:
        self.row = row


class CallExpired(NamedTuple):
    """No outcome of the call was reported within its limit."""

    at_ms: int


class CallBecameUnknown(NamedTuple):
    """Tells a session that nothing is known of a call's outcome; its clock was due at `due_ms`."""

    run_id: str | None
    tool_name: str
    idem_key: str
    at_ms: int
    due_ms: int
    reason_code: str
    reason: str


CallFact = CallMoved | CallExpired
