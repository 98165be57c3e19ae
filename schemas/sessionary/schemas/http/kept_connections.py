"""Connections to one HTTP server that stay open between requests, with the standard library."""

import base64
import os
import select
import socket
import ssl
import sys
import time
import weakref
from collections import deque
from collections.abc import Mapping
from http.client import BadStatusLine, HTTPConnection, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import proxy_bypass

from sessionary.schemas.http.proxies import describe_proxy, named_proxy

KEPT_MAX: Final = 8
IDLE_S_MAX: Final = 30.0  # Servers and what stands before them close idle connections, often after 60 s


class Request(NamedTuple):
    """A request that changes nothing on the server, so it may be sent twice."""

    path: str
    """Below the server's URL, with the query."""
    headers: Mapping[str, str]
    body: bytes | None = None
    """If there is one, the method is POST, otherwise GET."""


class HttpResponse(NamedTuple):
    """A server's answer."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    url: str = ""
    """Of the server that answered."""
    via: str = ""
    """For an error: the proxy that the answer came through, or is of."""


class OpenResponse(NamedTuple):
    """An answer whose body is still to be read from its socket."""

    connection: HTTPConnection
    answer: HTTPResponse
    socket: socket.socket

    def close(self) -> None:
        """Close the connection. No thread may read it."""
        self.answer.close()
        self.connection.close()


class NotConnected(OSError):
    """A server cannot be connected to: it has not got the request."""


class _Idle(NamedTuple):
    connection: HTTPConnection
    since_s: float


class KeptConnections:
    """Sends requests to one server. Thread-safe; a forked child opens its own connections.

    A request takes an idle connection, or opens one, and has exclusive use of it. Proxies are those
    of the environment, as `urllib.request` finds them, but a server on loopback has none; whether
    another is asked without one is looked up by the first request, because macOS and Windows may
    ask for the server's address. Redirects are not followed: they would take the token along.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None, answer_bytes_max: int) -> None:
        """Connect to nothing, and ask for no address.

        `tls`: None if the URL is not HTTPS. An answer is read up to `answer_bytes_max`.

        Raises `ValueError` if the URL has no host, or no number as its port, and `SettingsError` if
        the URL of the proxy is malformed.
        """
        self._url = url
        self._server = urlsplit(url.rstrip("/"))
        if not self._server.hostname:
            raise ValueError(f"no host in {url!r}")
        self._port = self._server.port
        self._host = self._server.netloc
        self._proxy = named_proxy(self._server)
        self._is_bypass_known = self._proxy is None
        self._tls = tls
        self._answer_bytes_max = answer_bytes_max
        self._idle: deque[_Idle] = deque()  # its methods are atomic: a fork never finds a lock held
        self._owner_pid = os.getpid()
        weakref.finalize(self, _close_all, self._idle)

    @property
    def via(self) -> str:
        """For an error: the proxy through which the server is asked."""
        return describe_proxy(self._server.scheme, self._proxy)

    def send(self, request: Request, timeout_s: float, connect_s: float | None = None) -> HttpResponse:
        """Send a request; return the answer, also one of an error.

        The server may close a connection just when it is used again: then the request is sent once
        more, on a new connection. `timeout_s` bounds each wait for the network, and `connect_s` the
        one for a connection. Raises `NotConnected`, another `OSError`, `HTTPException`.
        """
        kept = self._take_idle()
        if kept is not None:
            try:
                return self._send_on(kept, request, timeout_s)
            except (ConnectionError, BadStatusLine):
                pass
        return self._send_on(self._connect(timeout_s, connect_s), request, timeout_s)

    def open_stream(self, request: Request, timeout_s: float, connect_s: float | None = None) -> OpenResponse:
        """Send a request on a separate connection; return the answer, whose body is not read yet.

        The caller closes it. The waits and errors are those of `send`.
        """
        connection = self._connect(timeout_s, connect_s)
        try:
            # `http.client` forgets the socket if the server says that it will close the connection.
            used: socket.socket = connection.sock
            return OpenResponse(connection, self._ask(connection, request), used)
        except BaseException:
            connection.close()
            raise

    def close_idle(self) -> None:
        """Close the idle connections; a later request opens one."""
        _close_all(self._idle)

    def _send_on(self, connection: HTTPConnection, request: Request, timeout_s: float) -> HttpResponse:
        try:
            connection.sock.settimeout(timeout_s)
            found = self._ask(connection, request)
            body = found.read(self._answer_bytes_max)
            if found.length and len(body) < self._answer_bytes_max:
                missing = found.length
                found.close()
                raise IncompleteRead(body, missing)
            reported = {name.lower(): value for name, value in found.headers.items()}
            is_reusable = found.isclosed() and connection.sock is not None
        except BaseException:
            connection.close()
            raise
        if is_reusable and len(self._idle) < KEPT_MAX:
            self._idle.append(_Idle(connection, time.monotonic()))
        else:
            connection.close()
        return HttpResponse(found.status, found.reason, reported, body, self._url, self.via)

    def _ask(self, connection: HTTPConnection, request: Request) -> HTTPResponse:
        method = "GET" if request.body is None else "POST"
        headers = {**request.headers, **({} if self._tls else _login_headers(self._proxy))}
        connection.request(method, self._target(request), request.body, headers)
        return connection.getresponse()

    def _take_idle(self) -> HTTPConnection | None:
        """Return the connection that was used last, if the server has not closed it."""
        if self._owner_pid != os.getpid():
            # The parent keeps using its connections; closing this copy does not end them.
            _close_all(self._idle)
            self._owner_pid = os.getpid()
        while True:
            try:
                connection, since_s = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since_s < IDLE_S_MAX and not _was_closed(connection):
                return connection
            connection.close()

    def _target(self, request: Request) -> str:
        path = f"{self._server.path}{request.path}"
        return path if self._proxy is None or self._tls is not None else f"http://{self._host}{path}"

    def _connect(self, timeout_s: float, connect_s: float | None) -> HTTPConnection:
        connection = self._open(timeout_s if connect_s is None else min(timeout_s, connect_s))
        try:
            connection.connect()
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise NotConnected(*error.args) from error
            raise
        connection.sock.settimeout(timeout_s)
        return connection

    def _open(self, timeout_s: float) -> HTTPConnection:
        if not self._is_bypass_known:
            if proxy_bypass(self._host):
                self._proxy = None
            self._is_bypass_known = True
        place = self._server if self._proxy is None else self._proxy
        host = place.hostname or ""
        if self._tls is None:
            return HTTPConnection(host, place.port, timeout=timeout_s)
        connection = HTTPSConnection(host, place.port, timeout=timeout_s, context=self._tls)
        if self._proxy is not None:
            connection.set_tunnel(self._server.hostname or "", self._port, _login_headers(self._proxy))
        return connection


def _login_headers(proxy: SplitResult | None) -> dict[str, str]:
    """Return the header with which a proxy is logged in to, if its URL has a user."""
    if proxy is None or proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _was_closed(connection: HTTPConnection) -> bool:
    """Return whether the server has closed a connection, or sent something unasked."""
    if connection.sock is None:
        return True
    try:
        if sys.platform != "win32":
            poll = select.poll()  # `select` cannot watch descriptors above 1,023
            poll.register(connection.sock, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([connection.sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def _close_all(idle: deque[_Idle]) -> None:
    while True:
        try:
            idle.pop().connection.close()
        except IndexError:
            return
