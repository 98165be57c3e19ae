"""The pages of the control API on Faust's web server.

Every answer other than the pages' own is a problem document: for an unknown path or method, and for
a request that is not HTTP. aiohttp would answer with plain text, and log a traceback for each
request that it cannot read.
"""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

from aiohttp.typedefs import Handler
from aiohttp.web import (
    AppRunner,
    BaseRequest,
    HTTPException,
    Request,
    RequestHandler,
    Response,
    Server,
    StreamResponse,
    middleware,
)

from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.stream_processors.api.operators.partitions import PartitionApi
from sessionary.stream_processors.api.operators.rules import RulesApi
from sessionary.stream_processors.api.operators.session_events import MigrationPages, PeoplePages
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.api.sessions import ControlApi, UnknownIds

# Connections of the control API that may not stay: slow ones, and too many that wait.
#
# aiohttp bounds none of this: a client that sends a byte now and then keeps its connection, and
# its file descriptor, for ever.


HEADERS_S: Final = 10.0  # from the connection, or the first byte of a further request
BODY_S: Final = 10.0  # from the end of the headers
IDLE_S: Final = 75.0  # between two requests
CONNECTIONS_MAX: Final = 1_000
_TOO_LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/problem+json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s"
)
_PROBLEM: Final = Problem(408, "request_timeout", "Request Timeout", "the request came too slowly").to_json()


class TimedRequestHandler(RequestHandler):
    """A connection that is closed if a request's headers or its body come too slowly."""

    __slots__ = ("_timer", "_unread")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._unread: Any = None  # the body that is still coming

    @property
    def is_waiting(self) -> bool:
        """Whether no request of this connection is worked on."""
        return self._current_request is None and not self._messages

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first headers."""
        super().connection_made(transport)
        self._restart_timer(HEADERS_S)
        close_oldest(self._manager, besides=self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Wait for nothing."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of headers or of a body, and check which of them are still missing."""
        super().data_received(data)
        if self._messages:
            self._unread = self._messages[-1][1]
            self._stop_timer()
            if not self._unread.is_eof():
                self._restart_timer(BODY_S)
        elif self._unread is not None and not self._unread.is_eof():
            pass  # more of the body: its time runs on
        elif self._current_request is not None:
            self._stop_timer()  # the body is complete
        elif self._timer is None:
            self._restart_timer(HEADERS_S)

    def _restart_timer(self, wait_s: float) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(wait_s, self._close_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_late(self) -> None:
        self._timer = None
        if self.transport is not None and (self.is_waiting or not self._unread.is_eof()):
            self.transport.write(_TOO_LATE % (len(_PROBLEM), _PROBLEM))
            self.transport.close()


def close_oldest(server: Server | None, besides: RequestHandler) -> None:
    """Close the oldest waiting connection if there are too many, so that a new one is served."""
    if server is None or len(server.connections) <= CONNECTIONS_MAX:
        return
    for handler in server.connections:
        waits = isinstance(handler, TimedRequestHandler) and handler.is_waiting
        if waits and handler is not besides and handler.transport is not None and not handler.transport.is_closing():
            handler.transport.abort()
            return


_log = role_logger(__name__)


def serve_pages(
    web: Any,
    api: ControlApi,
    partitions: PartitionApi,
    rules: RulesApi,
    people: PeoplePages,
    migrations: MigrationPages,
) -> None:
    """Add the pages to Faust's web server `web`, which has not started yet."""
    router = web.web_app.router
    router.add_post("/v1/sessions/poll", api.polls.answer)
    router.add_get("/v1/sessions", api.lists.sessions)
    router.add_get("/v1/runs", api.lists.runs)
    router.add_get("/v1/waiting", api.lists.waiting)
    router.add_get("/v1/open-requests", api.lists.open_requests)
    for action in ("pause", "resume", "cancel", "approve", "deny"):
        router.add_post(f"/v1/sessions/{{session_id}}/{action}", getattr(people, action))
    router.add_post("/v1/sessions/{session_id}/ask-again", people.ask_again)
    router.add_post("/v1/sessions/{session_id}/migrate", migrations.migrate)
    router.add_post("/v1/sessions/{session_id}/abort-migration", migrations.abort)
    router.add_post("/v1/sessions/{session_id}/claim", migrations.claim)
    router.add_get("/v1/sessions/{session_id:(?!poll$)[^{}/]+}", api.session)  # else GET of the poll would be a session
    router.add_get("/v1/sessions/{session_id}/follow", api.following.follow, allow_head=False)
    router.add_get("/v1/sessions/{session_id}/runs", api.runs.open_runs)
    router.add_get("/v1/sessions/{session_id}/runs/{run_id}", api.runs.run)
    router.add_get("/v1/tasks/{task_id}", api.tasks.task)
    router.add_get("/v1/sessions/{session_id}/runs/{run_id}/steps", api.steps.steps)
    router.add_get("/v1/sessions/{session_id}/runs/{run_id}/steps/{name}", api.steps.step)
    for parent in ("/v1/sessions/{session_id}", "/v1/sessions/{session_id}/runs/{run_id}"):
        router.add_get(f"{parent}/tool-calls", api.calls.calls)
        router.add_get(f"{parent}/tool-calls/{{idem_key}}", api.calls.call)
        router.add_get(f"{parent}/artifacts", api.artifacts.artifacts)
        router.add_get(f"{parent}/checkpoints", api.checkpoints.checkpoints)
    router.add_get("/v1/sessions/{session_id}/execution", api.execution.execution)
    router.add_get("/v1/sessions/{session_id}/at", api.past.at)
    router.add_get("/v1/sessions/{session_id}/conversation", api.messages.conversation)
    router.add_get("/v1/sessions/{session_id}/agents", api.agents.agents)
    router.add_get("/v1/sessions/{session_id}/agents/{agent_id}", api.agents.agent)
    router.add_get("/v1/partitions", partitions.list_partitions)
    router.add_post("/v1/partitions/{partition}/retry", partitions.retry_partition)
    router.add_get("/v1/rules", rules.list_rules)
    router.add_post("/v1/rules", rules.activate_rules)
    router.add_post("/v1/partitions/{partition}/accept-gap", partitions.accept_gap)
    router.add_post("/v1/partitions/{partition}/accept-truncation", partitions.accept_truncation)
    router.add_post("/v1/partitions/{partition}/skip", partitions.skip_records)
    router.add_post("/v1/partitions/{partition}/repair-clock", partitions.repair_clock)
    router.add_post("/v1/partitions/{partition}/rebuild", partitions.rebuild_rows)
    router.add_get("/healthz", api.healthz)
    router.add_get("/readyz", api.readyz)
    router.add_get("/metrics", api.metrics)
    router.add_get("/openapi.json", api.openapi)
    web.web_app.on_shutdown.append(api.following.close)
    web.web_app.middlewares.append(answering_problems(api.unknown_ids))
    web._runner = ProblemRunner(web.web_app, access_log=None, keepalive_timeout=IDLE_S)


def answering_problems(unknown_ids: UnknownIds) -> Callable[[Request, Handler], Awaitable[StreamResponse]]:
    """Return a middleware that answers a `Problem`, or aiohttp's error, with a problem document."""

    @middleware
    async def answer_problems(request: Request, handler: Handler) -> StreamResponse:
        try:
            return await handler(request)
        except Problem as problem:
            unknown_ids.note(request.headers.get("Authorization"), problem)
            return problem.to_response()
        except HTTPException as error:
            allowed = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
            return _status_problem(error.status, f"{request.method} {request.path}", allowed).to_response()

    return answer_problems


def _status_problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Problem:
    title = HTTPStatus(status).phrase
    return Problem(status, title.lower().replace(" ", "_"), title, detail, headers or {})


class ProblemRequestHandler(TimedRequestHandler):
    """Answers a request that is not HTTP, or whose page failed, with a problem document."""

    __slots__ = ()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Return the problem document, and close the connection. A fault of ours is logged."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            _log.error("the page %(path)s failed", path=request.path, exc_info=exc, error_class=type(exc).__name__)
            detail = "the page failed; the worker's log says why"
        else:
            detail = (message or "the request is not valid HTTP").strip().splitlines()[0].rstrip(":")
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: there is no place for an error")
        response: Response = _status_problem(status, detail).to_response()
        response.force_close()
        return response


class ProblemServer(Server):
    """Makes a `ProblemRequestHandler` per connection."""

    def __call__(self) -> RequestHandler:
        """Return the handler of a new connection."""
        return ProblemRequestHandler(self, loop=self._loop, **self._kwargs)


class ProblemRunner(AppRunner):
    """Runs an application on a `ProblemServer`."""

    async def _make_server(self) -> Server:
        made = await super()._make_server()
        return ProblemServer(made.request_handler, request_factory=made.request_factory, **made._kwargs)
