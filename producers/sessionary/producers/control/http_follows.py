"""Streams of sessions' states by the processor's HTTP API, with the standard library.

A stream is read on its caller's thread, from a socket that never blocks: a read of `http.client`
that ran into a time-out could not be repeated.
"""

import json
import select
import socket
import ssl
import sys
import threading
import time
import urllib.parse
import weakref
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final, NamedTuple

from sessionary.producers.control.http_control import HttpControl, parse_session
from sessionary.producers.errors import SessionLost, Unavailable
from sessionary.producers.run_ports import FollowedState, StateStream
from sessionary.schemas.http.kept_connections import HttpResponse, OpenResponse

# Server-sent events, as the control API sends them to followers, from their bytes; pure.
#
# `http.client` decodes chunks too, but waits for the next chunk to learn that one is complete.


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


SILENT_S: Final = 15.0  # the API sends a comment every 5 s
_WAIT_MS_MAX: Final = 10_000
_NETWORK_MARGIN_S: Final = 2.0
_READ_BYTES: Final = 1 << 16
_PROBLEM_BYTES_MAX: Final = 1 << 16
_AGAIN_S: Final = 0.1
_LEAVE_S: Final = 1.0


class HttpStream:
    """`StateStream` over one connection."""

    def __init__(self, control: HttpControl, answered: OpenResponse) -> None:
        self._control = control
        self._answered = answered
        self._socket = answered.socket
        self._chunks = ChunkedBody() if answered.answer.chunked else None
        self._parser = EventParser()
        self._heard_s = time.monotonic()
        self._is_closed = False
        self._reading = threading.Lock()
        weakref.finalize(self, answered.close)
        self._socket.settimeout(0)
        self._first = self._read_ahead()

    def read_states(self, timeout_s: float) -> Sequence[FollowedState]:
        """Return the next reports, in order; nothing after `timeout_s`. Raises `Unavailable`."""
        deadline = time.monotonic() + timeout_s
        with self._reading:
            return self._read_states(deadline)

    def _read_states(self, deadline: float) -> Sequence[FollowedState]:
        while True:
            try:
                data = self._read_bytes(deadline)
            except (OSError, ValueError) as error:
                raise self._end_error(f"{error!r}") from None
            if data is None:
                return ()
            if not data:
                raise self._end_error("it was ended")
            try:
                found = [state for event in self._parser.take_bytes(data) if (state := self._state_of(event))]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._end_error(f"it is not one of states: {error!r}") from None
            if found:
                return found

    def close(self) -> None:
        """End the stream; a thread that reads it gets `Unavailable`. May be called again."""
        self._is_closed = True
        with suppress(OSError):
            # Not `SSLSocket.shutdown`, which takes the encryption from under another thread's feet.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        if self._reading.acquire(timeout=_LEAVE_S):  # that woke the thread that reads, if there is one
            try:
                self._answered.close()
            finally:
                self._reading.release()

    def _read_bytes(self, deadline: float) -> bytes | None:
        """Return some bytes of the body; none at its end; None if there are none by `deadline`."""
        while not self._is_closed and not (self._chunks is not None and self._chunks.is_over):
            received = self._receive()
            now_s = time.monotonic()
            if received is not None:
                self._heard_s = now_s
                data = received if self._chunks is None else self._chunks.take_bytes(received)
                if data or not received:
                    return data
                continue
            if now_s >= self._heard_s + SILENT_S:
                raise TimeoutError(f"nothing was heard for {SILENT_S:g} s")
            if now_s >= deadline:
                return None
            _wait_readable(self._socket, min(deadline, self._heard_s + SILENT_S) - now_s)
        return b""

    def _receive(self) -> bytes | None:
        """Return the bytes that have arrived; none at the end; None if there are none yet."""
        first, self._first = self._first, b""
        if first:
            return first
        try:
            return self._socket.recv(_READ_BYTES)
        except (ssl.SSLWantReadError, BlockingIOError):
            return None

    def _read_ahead(self) -> bytes:
        """Return the bytes that were read together with the headers."""
        try:
            return self._answered.answer.fp.read1(_READ_BYTES)
        except (ssl.SSLWantReadError, BlockingIOError):
            return b""

    def _state_of(self, event: StreamedEvent) -> FollowedState | None:
        if event.name == "end":
            return FollowedState(None)
        if event.name != "state":
            return None  # of a later release
        partition, _, offset = (event.place or "").partition(":")
        return FollowedState(parse_session(json.loads(event.data)), (int(partition), int(offset)))

    def _end_error(self, why: str) -> Unavailable:
        self._answered.close()
        return Unavailable(f"the stream of the control API at {self._control.url} is over: {why}", _AGAIN_S)


class ArchivedStream:
    """`StateStream` of a session that is archived already."""

    def read_states(self, timeout_s: float) -> Sequence[FollowedState]:
        """Return the archived state at once."""
        return (FollowedState(None),)

    def close(self) -> None:
        """Do nothing."""


class HttpFollows:
    """`Follows` by the control API. Thread-safe."""

    def __init__(self, control: HttpControl) -> None:
        """`control` has the URL, the token and the settings of TLS."""
        self._control = control

    def check_configured(self) -> None:
        """Raise `SettingsError` if no URL is set."""
        self._control.check_configured()

    def open_states(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> StateStream:
        """Return a stream that begins with the present state, once `after` is judged. Asks once.

        Raises `SessionLost`, `AuthenticationFailed`, `Invalid`, `SettingsError`, `Unavailable`.
        """
        wait_s = max(0.0, min(timeout_s, _WAIT_MS_MAX / 1_000))
        query = {"wait_ms": str(int(wait_s * 1_000)), **self._control.tenant_query()}
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = f"{after[0]}:{after[1]}"
        path = f"sessions/{session_id}/follow?{urllib.parse.urlencode(query)}"
        answered = self._control.open_stream(path, headers, wait_s + _NETWORK_MARGIN_S)
        answer = answered.answer
        if answer.status == 200:
            return HttpStream(self._control, answered)
        try:
            body = answer.read(_PROBLEM_BYTES_MAX)
        except (OSError, HTTPException) as error:
            raise Unavailable(f"control API at {self._control.url}: {error}", _AGAIN_S) from None
        finally:
            answered.close()
        reported = {name.lower(): text for name, text in answer.headers.items()}
        return self._refuse_or_end(session_id, HttpResponse(answer.status, answer.reason, reported, body))

    def _refuse_or_end(self, session_id: str, answer: HttpResponse) -> StateStream:
        reason = _reason_of(answer.body)
        if reason == "session_archived":
            return ArchivedStream()
        error = self._control.error_from(f"session {session_id}", answer)
        if isinstance(error, SessionLost) and reason != "unknown_session":
            # While workers are upgraded, another one may answer.
            raise Unavailable(f"control API at {self._control.url} knows no followers: upgrade the processors", 1.0)
        raise error


def _reason_of(body: bytes) -> Any:
    try:
        return json.loads(body).get("reason")
    except (ValueError, AttributeError):
        return None


def _wait_readable(readable: socket.socket, timeout_s: float) -> None:
    if sys.platform != "win32":
        poll = select.poll()  # `select` cannot watch descriptors above 1,023
        poll.register(readable, select.POLLIN)
        poll.poll(timeout_s * 1_000)
        return
    select.select([readable], [], [], timeout_s)
