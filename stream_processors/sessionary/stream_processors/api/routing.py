"""The other workers of the group: requests that belong to them, and their answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout
from aiohttp.web import Request, Response

from sessionary.schemas.tls import trusting_context
from sessionary.stream_processors.api.problems import not_ready
from sessionary.stream_processors.settings import ProcessorSettings

WAIT_MS_MAX = 10_000  # how long a passed on request may let its owner wait
_ROUTED = "Sessionary-Routed"  # set on a request that a worker passed on; it is not passed on again
_SEVERAL_S = 2.0
_ASK_S = 3.0
_PASSED_QUESTIONS = ("Authorization", "Last-Event-ID", "Idempotency-Key")
_PASSED_HEADERS = ("Content-Type", "Retry-After", "WWW-Authenticate", "Cache-Control", "X-Accel-Buffering")


class Group(Protocol):
    """The consumer group, as far as the API needs it."""

    def owner_urls(self) -> Mapping[int, str]:
        """Return the URL of each partition's owner, from the last assignment."""
        ...

    def worker_urls(self) -> Iterable[str]:
        """Return the URLs of all workers, also of those without a partition."""
        ...

    def heartbeat_s(self) -> float:
        """Return when the group last acknowledged a heartbeat, on the monotonic clock."""
        ...

    def http_client(self) -> ClientSession:
        """Return the client for requests to other workers."""
        ...


class NoAnswer(Exception):
    """Another worker gave no usable answer; the message says why. `status` is that of HTTP."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class OtherWorkers:
    """Speaks to the other workers' APIs, with the token of the request."""

    def __init__(self, settings: ProcessorSettings, group: Group) -> None:
        """Read the authorities that HTTPS needs. Raises `SettingsError`."""
        self._settings = settings
        self._tls = trusting_context("SESSIONARY_CONTROL_CA_LOCATION", settings.control_ca_location)
        self._group = group

    def owner_url(self, partition: int) -> str | None:
        """Return the URL of another worker that owns a partition; None if none is known."""
        url = self._group.owner_urls().get(partition)
        return None if url == self._settings.api_url else url

    def urls(self) -> frozenset[str]:
        """Return the URLs of all other workers of the group."""
        return frozenset(self._group.worker_urls()) - {self._settings.api_url}

    def has_heard(self, committed_s: float = 0.0) -> bool:
        """Return whether the group has answered within a session time-out; a commit is an answer.

        If not, another worker may own this worker's partitions by now. `committed_s`: the last
        commit, on the monotonic clock.
        """
        heard_s = max(committed_s, self._group.heartbeat_s())
        return time.monotonic() - heard_s <= self._settings.session_timeout_ms / 1_000

    def require_membership(self) -> None:
        """Raise `Problem` 503 if the group has not answered for a session time-out."""
        if not self.has_heard():
            raise not_ready("this worker has had no answer of its group for a session time-out")

    async def pass_on(self, request: Request, partition: int, wait_s: float | None = None) -> Response:
        """Return the answer of the partition's owner. Raises `Problem` 503 if there is none.

        `wait_s`: how long the owner may take, 10 s by default.
        """
        total_s = WAIT_MS_MAX / 1_000 if wait_s is None else wait_s
        timeout = ClientTimeout(total=total_s + _SEVERAL_S, connect=_SEVERAL_S)
        async with self.open_answer(request, partition, timeout) as answer:
            return Response(status=answer.status, body=await answer.read(), headers=passed_headers(answer))

    @asynccontextmanager
    async def open_answer(
        self, request: Request, partition: int, timeout: ClientTimeout, client: ClientSession | None = None
    ) -> AsyncIterator[ClientResponse]:
        """Ask the partition's owner; yield its answer, whose body is still to be read.

        `client`: by default the one for short requests, which has a limit of connections.
        Raises `Problem` 503 if there is no answer, also if the owner is lost while the block reads.
        """
        url = self.owner_url(partition)
        if url is None or not has_api(url) or was_passed_on(request):
            raise not_ready(f"the owner of partition {partition} is not known, or has no API")
        try:
            async with (client or self._group.http_client()).request(
                request.method,
                url + request.path_qs,
                data=await request.read(),
                headers=self._headers(request),
                timeout=timeout,
                ssl=self._tls,
                allow_redirects=False,
            ) as answer:
                yield answer
        except (ClientError, TimeoutError) as error:
            raise not_ready(f"the owner of partition {partition} does not answer: {type(error).__name__}") from error

    async def ask_all(
        self,
        request: Request,
        urls: Iterable[str],
        *,
        method: str = "GET",
        body: bytes | None = None,
        timeout_s: float = _ASK_S,
    ) -> dict[str, Any]:
        """Ask each of `urls` for the page of `request`, at once. Return each JSON answer, or
        `NoAnswer`.

        Waits at most `timeout_s`.
        """
        return await self.ask_each(request, dict.fromkeys(urls, body), method=method, timeout_s=timeout_s)

    async def ask_each(
        self, request: Request, bodies: Mapping[str, bytes | None], *, method: str, timeout_s: float = _ASK_S
    ) -> dict[str, Any]:
        """Ask as `ask_all` does, with a body for each URL."""
        answers = await asyncio.gather(
            *(self._ask_one(request, url, method, body, timeout_s) for url, body in bodies.items()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NoAnswer):
                raise answer
        return dict(zip(bodies, answers, strict=True))

    async def _ask_one(self, request: Request, url: str, method: str, body: bytes | None, timeout_s: float) -> Any:
        if not has_api(url):
            raise NoAnswer("the worker has no control API")
        try:
            async with self._group.http_client().request(
                method,
                url + request.path_qs,
                data=body,
                headers=self._headers(request),
                timeout=ClientTimeout(total=timeout_s, connect=_SEVERAL_S),
                ssl=self._tls,
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    raise NoAnswer(f"the worker answers {answer.status}", answer.status)
                return await answer.json()
        except (ClientError, TimeoutError, ValueError) as error:
            raise NoAnswer(f"the worker does not answer: {type(error).__name__}") from error

    def _headers(self, request: Request) -> dict[str, str]:
        passed = {name: request.headers[name] for name in _PASSED_QUESTIONS if name in request.headers}
        return {**passed, _ROUTED: self._settings.worker_name}


def passed_headers(answer: ClientResponse) -> dict[str, str]:
    """Return the headers of another worker's answer that are passed on to the caller."""
    return {name: answer.headers[name] for name in _PASSED_HEADERS if name in answer.headers}


def has_api(url: str) -> bool:
    """Return whether a worker's URL leads to an API; its port is 0 if it has none."""
    return not url.endswith(":0")


def was_passed_on(request: Request) -> bool:
    """Return whether another worker sent this request."""
    return _ROUTED in request.headers
