"""The control API on Faust's web server, with fakes of all that is below it, and a bare client."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from aiohttp import ClientSession
from aiohttp.web import Request

from sessionary.infra.local.ports import free_port
from sessionary.schemas.codec import Event
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.access import parse_tokens
from sessionary.stream_processors.api import routing
from sessionary.stream_processors.api.operators.partitions import PartitionApi
from sessionary.stream_processors.api.operators.rules import RulesApi
from sessionary.stream_processors.api.operators.session_events import (
    LogPosition,
    MigrationPages,
    PeoplePages,
    SendEvent,
    SessionEvents,
)
from sessionary.stream_processors.api.pages import serve_pages
from sessionary.stream_processors.api.routing import OtherWorkers
from sessionary.stream_processors.api.session_questions import AskEnd
from sessionary.stream_processors.api.sessions import ControlApi
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.faust_app import make_faust_app
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings
from tests.auditor.signatures import SECRETS


class ApiResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: Any

    @property
    def is_problem(self) -> bool:
        """Whether it is a problem document whose parts agree."""
        if self.headers.get("content-type") != "application/problem+json" or not isinstance(self.body, dict):
            return False
        reason = self.body["reason"]
        return bool(self.body["status"] == self.status and self.body["type"] == f"urn:sessionary:problems/{reason}")


def ends_at(end: int | None) -> AskEnd:
    """Return what tells where each partition ends; None: Kafka does not answer."""

    async def ask_end(partition: int) -> int:
        if end is None:
            raise Lost("no answer")
        return end

    return ask_end


no_end = ends_at(None)


class FakeAssignment:
    """Owns nothing."""

    def __init__(self) -> None:
        self.owners: dict[int, Any] = {}
        self.is_ready = True


class FakeGroup:
    """Knows the owners' URLs, and those of workers without a partition."""

    def __init__(
        self, client: ClientSession, urls: Mapping[int, str], idle_urls: Iterable[str], heartbeat_age_s: float
    ) -> None:
        self._client, self._urls, self._heartbeat_age_s = client, urls, heartbeat_age_s
        self._idle_urls = idle_urls

    def owner_urls(self) -> Mapping[int, str]:
        return self._urls

    def worker_urls(self) -> Iterable[str]:
        return {*self._urls.values(), *self._idle_urls}

    def heartbeat_s(self) -> float:
        return time.monotonic() - self._heartbeat_age_s

    def http_client(self) -> ClientSession:
        return self._client


class PatientWorkers(OtherWorkers):
    """Waits for a minute for another worker: it is in this process, which may stand still."""

    async def _ask_one(self, request: Request, url: str, method: str, body: bytes | None, timeout_s: float) -> Any:
        return await super()._ask_one(request, url, method, body, 60.0)


class Server:
    """The control API on Faust's web server; nothing of Kafka runs."""

    def __init__(self, port: int, client: ClientSession, metrics: Metrics) -> None:
        self._port = port
        self.client = client
        self.metrics = metrics
        self.url = f"http://127.0.0.1:{port}"

    async def send(self, raw: bytes) -> ApiResponse:
        """Send a request as it is, read one answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(raw)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            first, *lines = head.decode().strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            length = 0 if raw.startswith(b"HEAD ") else int(headers["content-length"])
            body = await asyncio.wait_for(reader.readexactly(length), 60)
        finally:
            writer.close()
        is_json = "json" in headers["content-type"]
        return ApiResponse(int(first.split()[1]), headers, json.loads(body) if is_json and body else body)

    async def ask(
        self,
        path: bytes,
        auth: bytes | None = b"Bearer token",
        method: bytes = b"GET",
        more: bytes = b"",
        body: bytes = b"",
    ) -> ApiResponse:
        """Ask for a page; `token` is a reader's, `op` an operator's."""
        more += b"Content-Length: %d\r\n" % len(body) if body else b""
        header = b"" if auth is None else b"Authorization: " + auth + b"\r\n"
        return await self.send(
            method + b" " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + more + b"\r\n" + body
        )


def lose_event(event: Event) -> LogPosition:
    """Send nothing: there is no Kafka."""
    raise Lost(f"{event.envelope.event_type} was not sent: there is no Kafka")


@asynccontextmanager
async def running_server(
    folder: Path,
    assignment: Any = None,
    urls: Mapping[int, str] | None = None,
    instance: str = "w1",
    port: int | None = None,
    heartbeat_age_s: float = 0.0,
    idle_urls: Iterable[str] = (),
    partitions: int = 4,
    followers_max: int = 500,
    send_event: SendEvent | None = None,
    count_quotas: Callable[[KafkaSettings], int] = lambda _: 1,
) -> AsyncIterator[Server]:
    """Serve the API of a worker; `urls` are those of the partitions' owners, `idle_urls` of other
    workers.
    """
    settings = ProcessorSettings(
        api_tokens=parse_tokens(
            {
                "token": "acme",
                "op": {"principal": "on-call", "roles": ["operator"]},
                "op-of-acme": {"tenant": "acme", "principal": "alice", "roles": ["operator"]},
                "of-u1": {"tenant": "acme", "user": "u1", "roles": ["reader", "operator"]},
                "of-u2": {"tenant": "acme", "user": "u2", "roles": ["reader", "operator"]},
            }
        ),
        api_port=port or free_port(),
        instance=instance,
        partitions=partitions,
        api_followers_max=followers_max,
        signing_keys=SECRETS,
    )
    metrics = Metrics()
    tokens = TokenStore(settings, metrics)
    assignment = assignment or FakeAssignment()
    web: Any = make_faust_app(settings, str(folder)).web
    with patch.object(routing, "_SEVERAL_S", 60.0):
        async with ClientSession() as client:
            group = FakeGroup(client, urls or {}, idle_urls, heartbeat_age_s)
            others = PatientWorkers(settings, group)
            events = SessionEvents(settings, tokens, assignment, others, send_event or lose_event)
            serve_pages(
                web,
                ControlApi(settings, tokens, assignment, metrics, others, no_end, lambda: True, dict),
                PartitionApi(settings, tokens, assignment, others),
                RulesApi(settings, tokens, assignment, others, count_quotas),
                PeoplePages(events),
                MigrationPages(events),
            )
            web.init_server()
            await web.start_server()
            try:
                yield Server(settings.api_port, client, metrics)
            finally:
                await web.stop_server()
