"""The errors of a sink, in three classes by the sink's reaction.

    SessionaryError
    ├── Invalid
    │   └── BadRow(detail)                the record's bytes are at fault: dead letter, continue
    ├── Unavailable
    │   └── Transient(reason, detail)     passes by itself: wait and retry without a limit
    ├── OperatorError(reason, detail)     an operator must act: report it, retry, never skip
    └── Fenced                            another process uses the same instance name: end

`reason` is short and one of a small set, because it labels a metric.
"""

from typing import Final

from sessionary.schemas.errors import Invalid, SessionaryError, Unavailable

RETRY_FIRST_S: Final = 0.25
RETRY_LAST_S: Final = 10.0
# Faults of one partition's block; all others are ClickHouse's or Kafka's, and stop all partitions.
PARTITION_REASONS: Final = frozenset(
    {"block_not_kept", "short_write", "registry", "dead_letters", "client", "wrong_type"}
)


class BadRow(Invalid):
    """A record that can never become a row, however often it is tried."""

    def __init__(self, detail: str) -> None:
        super().__init__("bad_row", detail)


class Transient(Unavailable):
    """A fault that passes by itself."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}", RETRY_FIRST_S)
        self.reason = reason


class OperatorError(SessionaryError):
    """A fault that lasts until an operator acts; the message says what to do if that is known."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Fenced(SessionaryError):
    """Kafka has fenced this group member for good: another process uses its instance name."""
