"""A Kafka record before it becomes a row."""

from typing import Final, NamedTuple

from sessionary.schemas.headers import HeaderSource, header_pairs, read_headers


class _NoHeaders:
    """Stands for the message of a record without headers."""

    def headers(self) -> None:
        """Return None."""

    def set_headers(self, headers: list[tuple[str, str | bytes | None]], /) -> None:
        """Do nothing: reading the headers does not fail."""


NO_HEADERS: Final = _NoHeaders()


class RawRecord(NamedTuple):
    """A record as Kafka delivers it.

    `header_source` is the driver's message. It makes the header objects when it is asked: most
    sinks never need them.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    header_source: HeaderSource = NO_HEADERS

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers in their order; a header without a value has an empty one.

        `UNREADABLE_HEADERS` if they cannot be read.
        """
        return header_pairs(read_headers(self.header_source))

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")
