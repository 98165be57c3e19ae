"""What can go wrong with a partition, by what follows from it.

SessionaryError
└── ProcessorFault
    ├── Aborted          the transaction is undone; fold the same records again
    ├── Lost             the producer is fenced or broken; open this partition again
    ├── Halted(reason)   an operator must look; this partition stands still, the others go on
    └── ProcessorFailed  the process cannot go on
"""

from typing import Literal

from sessionary.schemas.errors import SessionaryError

HaltReason = Literal[
    "log_gap",  # the log begins behind the position: records are gone that were never judged
    "record_too_large",  # the broker refuses a record of this processor
    "changelog_unreadable",  # a changelog record cannot be decoded
]


class ProcessorFault(SessionaryError):
    """Base of a processor's own errors."""


class Aborted(ProcessorFault):
    """The transaction was aborted; nothing of it is visible."""


class Lost(ProcessorFault):
    """The partition's producer can do nothing more."""


class Halted(ProcessorFault):
    """The partition stands still until an operator acts."""

    def __init__(self, reason: HaltReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: HaltReason = reason
        self.detail = detail


class ProcessorFailed(ProcessorFault):
    """The processor ended by itself; the message says why."""


__all__ = ["Aborted", "HaltReason", "Halted", "Lost", "ProcessorFailed", "ProcessorFault"]
