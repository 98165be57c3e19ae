"""A Kafka record before it becomes a row."""

from collections.abc import Callable
from typing import NamedTuple

from sessionary.schemas.headers import Headers, header_pairs


def no_headers() -> Headers | None:
    """Read the headers of a record that has none."""
    return None


class RawRecord(NamedTuple):
    """A record as Kafka delivers it.

    `read_headers` makes the header objects when it is called: most sinks never need them.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    read_headers: Callable[[], Headers | None] = no_headers

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers in their order; a header without a value has an empty one."""
        return header_pairs(self.read_headers())

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


__all__ = ["RawRecord", "no_headers"]
