"""A processor's errors, by their consequence.

SessionaryError
└── ProcessorFault
    ├── Aborted          the transaction was undone: fold the same records again
    ├── Lost             the producer is fenced or broken: open the partition again
    ├── Halted(reason)   this partition stops until the cause is removed, the others go on
    └── ProcessorFailed  the process cannot go on
"""

from typing import Literal

from sessionary.schemas.errors import SessionaryError

HaltReason = Literal[
    "log_gap",  # the log begins after the position: records were deleted before they were folded
    "log_truncated",  # the log ended below the position: it lost records that were folded already
    "wrong_timestamp_type",  # a record has a client's time, not the broker's, by which deadlines are judged
    "record_too_large",  # the broker refuses a record of this processor for its size
    "changelog_unreadable",  # a changelog record cannot be decoded
]


class ProcessorFault(SessionaryError):
    """Base of a processor's errors."""


class Aborted(ProcessorFault):
    """A transaction was aborted; nothing of it is visible."""


class Lost(ProcessorFault):
    """A partition's producer or reader cannot go on."""


class Halted(ProcessorFault):
    """A partition stops; `reason` says why, `detail` what happened where, and what to do.

    It is opened again now and then, in case the cause is gone; most causes need an operator.
    """

    def __init__(self, reason: HaltReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: HaltReason = reason
        self.detail = detail


class ProcessorFailed(ProcessorFault):
    """The process ended by itself; the message says why."""


__all__ = ["Aborted", "HaltReason", "Halted", "Lost", "ProcessorFailed", "ProcessorFault"]
