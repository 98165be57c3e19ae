"""Server-sent events, as the control API sends them to followers, from their bytes; pure.

`http.client` decodes chunks too, but waits for the next chunk to learn that one is complete.
"""

from typing import NamedTuple

MESSAGE_BYTES_MAX = 32 << 20
_SIZE_BYTES_MAX = 1_000


class StreamedEvent(NamedTuple):
    """One message of a stream."""

    name: str
    place: str | None  # its id
    data: str


class ChunkedBody:
    """Decodes a body with `Transfer-Encoding: chunked`, however its bytes are cut."""

    def __init__(self) -> None:
        self.is_over = False
        self._rest = b""
        self._left = 0  # bytes of the chunk under way, and of the line's end after it

    def take_bytes(self, data: bytes) -> bytes:
        """Return the content in `data`. Raises `ValueError` if that is not such a body."""
        rest, content = self._rest + data, b""
        while rest and not self.is_over:
            if self._left:
                content += rest[: max(self._left - 2, 0)]
                taken = min(self._left, len(rest))
                self._left, rest = self._left - taken, rest[taken:]
                continue
            size, line_end, after = rest.partition(b"\r\n")
            if not line_end:
                if len(rest) > _SIZE_BYTES_MAX:
                    raise ValueError("a chunk without a size")
                break
            number = int(size.partition(b";")[0], 16)
            self.is_over = number == 0
            self._left, rest = number + 2, after
        self._rest = rest
        return content


class EventParser:
    """Puts messages together from bytes, however these are cut. Comments are left out."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}

    def take_bytes(self, data: bytes) -> list[StreamedEvent]:
        """Return the messages that end in `data`, in order.

        Raises `ValueError` if a line is too long, or not UTF-8.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MESSAGE_BYTES_MAX:
            raise ValueError(f"a line has more than {MESSAGE_BYTES_MAX} bytes")
        found = (self._take_line(line.rstrip(b"\r").decode()) for line in lines)
        return [event for event in found if event is not None]

    def _take_line(self, line: str) -> StreamedEvent | None:
        if line:
            name, _, text = line.partition(":")
            text = text.removeprefix(" ")
            if name == "data" and name in self._fields:
                text = f"{self._fields[name]}\n{text}"
            if name:
                self._fields[name] = text
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        return StreamedEvent(fields.get("event", "message"), fields.get("id"), fields["data"])
