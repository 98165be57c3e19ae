"""The streams of followers that a worker serves: how many there are, and the end of all of them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector
from aiohttp.web import Request, Response, StreamResponse

from sessionary.schemas.records import SessionState
from sessionary.stream_processors.api.problems import Problem, not_ready
from sessionary.stream_processors.api.routing import OtherWorkers, passed_headers
from sessionary.stream_processors.api.session_poll import require_reader
from sessionary.stream_processors.api.session_questions import (
    AskedOwner,
    SessionQuestions,
    require_session,
    session_document,
)
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.metrics import Metrics

_RETRY_AFTER_S: Final = "5"


class OpenStreams:
    """Bounds the streams of one worker. Belongs to the event loop."""

    def __init__(self, followers_max: int, metrics: Metrics) -> None:
        self._followers_max = followers_max
        self._gauge = metrics.followers
        self._lives: set[asyncio.Timeout] = set()
        self._is_closed = False

    @asynccontextmanager
    async def open_stream(self, source: Literal["own", "passed_on"]) -> AsyncIterator[None]:
        """Count a stream until the block ends, which `close` does at once; so does `TimeoutError`.

        Raises `Problem` 503 if there are too many, or none is to begin any more.
        """
        if self._is_closed:
            raise not_ready("the worker is ending")
        if len(self._lives) >= self._followers_max:
            detail = f"this worker serves {self._followers_max} followers already (SESSIONARY_API_FOLLOWERS_MAX)"
            raise Problem(503, "too_many_followers", "Too many followers", detail, {"Retry-After": _RETRY_AFTER_S})
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as life:
                self._lives.add(life)
                self._gauge.labels(source).inc()
                try:
                    yield
                finally:
                    self._lives.discard(life)
                    self._gauge.labels(source).dec()

    def close(self) -> None:
        """End all streams, and let none begin."""
        self._is_closed = True
        for life in self._lives:
            if not life.expired():
                life.reschedule(0.0)


# The page that a session's followers read: its state now, then one message per committed change.
#
# A follower has no queue. A commit that touches its session wakes the follower, which then reports
# the newest state if it differs from the last report. So a slow reader skips states, and no state
# is reported twice.


# The state that followers of a session get. It is read once per commit, for all followers.


END = b"event: end\ndata: {}\n\n"


class SessionNotification:
    """One session of a partition, which must be readable whenever a method is called."""

    def __init__(self, asked: AskedOwner) -> None:
        """`asked`: from `SessionQuestions.ask_to_follow`, so of the tenant of a caller's token."""
        self._asked = asked
        self._key = asked.question.key.encoded()
        self._read_at = self._written_at = -1  # numbers of commits
        self._row: SessionState | None = None
        self._seen: tuple[Any, ...] | None = None
        self._message = END

    def read(self) -> tuple[Any, ...] | None:
        """Return the present values whose change makes a message; None if the session is archived.

        Signs of life and deadlines are not among them.
        """
        owner = self._asked.owner
        if self._read_at != owner.commits:
            row = owner.state.rows.get(self._key)
            self._row = row if isinstance(row, SessionState) else None
            self._seen = None if self._row is None else _seen_of(self._row)
            self._read_at = owner.commits
        return self._seen

    def message(self) -> bytes:
        """Return the event that reports the last reading."""
        if self._row is None:
            return END
        if self._written_at != self._read_at:
            question, owner = self._asked
            place = f"{question.partition}:{owner.state.position.next_offset - 1}"
            document = json.dumps(session_document(self._row, self._asked))
            self._message = f"id: {place}\nevent: state\ndata: {document}\n\n".encode()
            self._written_at = self._read_at
        return self._message


def _seen_of(row: SessionState) -> tuple[Any, ...]:
    return (
        *(row.state, row.phase, row.reason_code, row.epoch, row.version),
        *(row.owner_service, row.agent_id, row.holder),
        *(row.state_schema_version, row.state_json, row.snapshot.snapshot_id),
        *(row.limits, tuple(row.data_classes), row.hold),
    )


KEEP_ALIVE_S: Final = 5.0  # without a message, a comment; as often a stream checks whether it may continue
_KEEP_ALIVE: Final = b":\n\n"
_CONNECT_S: Final = 2.0
# An owner that is silent for longer is lost; it may wait 10 s before it answers.
OWNER_SILENT_S: Final = 15.0
WRITE_S: Final = 20.0  # A reader that takes nothing for this long is cut off
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx
}


class EventStream:
    """One answer in the form of server-sent events. A write waits until the connection took it.

    So nothing queues here for a slow reader: data that it has not taken yet is in the sockets.
    """

    def __init__(self, request: Request, headers: Mapping[str, str] = _HEADERS, status: int = 200) -> None:
        self._request = request
        self.response = StreamResponse(status=status, headers=headers)
        self.response.force_close()  # a stream that ended is over: a proxy must not wait for more

    async def open(self) -> None:
        """Send the headers."""
        if self._request.transport is not None:
            self._request.transport.set_write_buffer_limits(high=0)
        await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Send bytes; return once the connection has taken them.

        Raises `ConnectionError` if the reader has left, and `TimeoutError` if it takes nothing. A
        reader that does not take all is cut off.
        """
        try:
            async with asyncio.timeout(WRITE_S):
                await self.response.write(data)
                await self._request.writer.drain()
        except BaseException:
            if self._request.transport is not None:
                self._request.transport.abort()  # else the end of the answer would wait for the reader too
            raise


class FollowPage:
    """Serves the followers that ask one worker."""

    def __init__(
        self, questions: SessionQuestions, tokens: TokenStore, others: OtherWorkers, streams: OpenStreams
    ) -> None:
        self._questions = questions
        self._tokens = tokens
        self._others = others
        self._streams = streams
        self._reported: WeakValueDictionary[tuple[int, bytes], SessionNotification] = WeakValueDictionary()
        self._client: ClientSession | None = None

    async def follow(self, request: Request) -> StreamResponse:
        """Answer `GET /v1/sessions/{session_id}/follow`. Raises `Problem`.

        Waits up to `wait_ms` until the record at `Last-Event-ID`, or `after`, is folded. The stream
        ends if the session is archived, if the partition is no longer this worker's, or not open,
        if the token is no longer known, and with the worker.
        """
        asked = await self._questions.ask_to_follow(request, self._pass_on)
        if isinstance(asked, StreamResponse):
            return asked
        require_session(asked)
        stream = EventStream(request)
        async with self._streams.open_stream("own"):
            await _serve_reader(lambda: self._send_states(request, asked, stream))
        return stream.response

    def end_streams(self) -> None:
        """End all streams at once, and let none begin."""
        self._streams.close()

    async def close(self, *_: Any) -> None:
        """End all streams, and close the connections to other workers."""
        self.end_streams()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _send_states(self, request: Request, asked: AskedOwner, stream: EventStream) -> None:
        owner, key = asked.owner, asked.question.key.encoded()
        reported = self._reported.get((id(owner), key))  # it holds its owner, so the id stays the owner's
        if reported is None:
            self._reported[id(owner), key] = reported = SessionNotification(asked)
        await stream.open()
        seen: object = None
        looked_s = written_s = time.monotonic()
        with owner.notifications.watch_row(key) as watch:
            while not owner.notifications.is_over:
                if owner.is_readable:
                    now = reported.read()
                    if now is None or now != seen:
                        await stream.write(reported.message())
                        written_s, seen = time.monotonic(), now
                    if now is None:
                        return
                await watch.wait(max(0.0, min(written_s, looked_s) + KEEP_ALIVE_S - time.monotonic()))
                now_s = time.monotonic()
                if now_s >= looked_s + KEEP_ALIVE_S:
                    looked_s = now_s
                    if not self._may_go_on(request, asked):
                        return
                if now_s >= written_s + KEEP_ALIVE_S:
                    await stream.write(_KEEP_ALIVE)
                    written_s = now_s

    def _may_go_on(self, request: Request, asked: AskedOwner) -> bool:
        """Return whether the partition is surely this worker's, and the token the same reader's."""
        try:
            caller, _ = require_reader(self._tokens, request, request.query.get("tenant"))
        except Problem:
            return False
        former = asked.question.caller
        is_same = (caller.tenant, caller.user) == (former.tenant, former.user)
        return is_same and self._others.has_heard(asked.owner.committed_s)

    async def _pass_on(self, request: Request, partition: int) -> StreamResponse:
        """Pass the owner's stream through as it comes. Any other answer is passed on whole."""
        if self._client is None:
            # A separate client: open streams would keep other requests from the worker's client.
            self._client = ClientSession(connector=TCPConnector(limit=0, force_close=True))
        timeout = ClientTimeout(total=None, connect=_CONNECT_S, sock_read=OWNER_SILENT_S)
        answer: StreamResponse | None = None
        async with (
            self._streams.open_stream("passed_on"),
            self._others.open_answer(request, partition, timeout, self._client) as found,
        ):
            if found.status != 200:
                return Response(status=found.status, body=await found.read(), headers=passed_headers(found))
            stream = EventStream(request, passed_headers(found))
            answer = stream.response
            await _serve_reader(lambda: _pass_through(found, stream))
        if answer is None:
            raise not_ready("the worker is ending")
        return answer


async def _pass_through(source: ClientResponse, stream: EventStream) -> None:
    await stream.open()
    async for chunk in source.content.iter_any():
        await stream.write(chunk)


async def _serve_reader(serve: Callable[[], Awaitable[None]]) -> None:
    """Serve a stream until it ends, or its reader or its source is lost: then it just ends."""
    try:
        await serve()
    except (ConnectionError, ClientError, TimeoutError):
        return
