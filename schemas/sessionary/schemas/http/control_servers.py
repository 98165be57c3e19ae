"""The servers of a control API: any of them answers, so if one is away, the next one is asked."""

import re
import time
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Final, TypeVar
from urllib.parse import urlsplit

from sessionary.schemas.http.kept_connections import HttpResponse, KeptConnections, NotConnected, OpenResponse, Request
from sessionary.schemas.tls import context_for

CONNECT_S: Final = 2.0
_QUICK_S: Final = 2.0
_VISIBLE: Final = re.compile(r"[!-~]+")
A = TypeVar("A", HttpResponse, OpenResponse)


def split_urls(text: str) -> list[str]:
    """Return the URLs of a control API's servers, which commas separate.

    Raises `ValueError` that names the first one to which no path can be added.
    """
    urls = [url.strip() for url in text.split(",")]
    for url in urls:
        if not _is_http_url(url):
            raise ValueError(
                f"{url!r} is not the URL of a control API, such as http://127.0.0.1:8600; "
                "several are separated by commas; without one unset it"
            )
    return list(dict.fromkeys(urls))


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = _VISIBLE.fullmatch(url) and not (parts.query or parts.fragment or "@" in parts.netloc)
    return bool(plain and parts.scheme in ("http", "https") and parts.hostname and port != 0)


class Unanswered(Exception):
    """No server gave an answer. The message names each that was asked, and its fault.

    `failures`: a URL and its fault, for each.
    """

    def __init__(self, failures: Sequence[tuple[str, Exception]]) -> None:
        super().__init__("; ".join(f"{url}: {error}" for url, error in failures))
        self.failures = failures


class ControlServers:
    """Sends each request to the server that answered last. Thread-safe.

    If that one cannot be connected to, or says soon that it is not ready (a status of 500 or more),
    the next one is asked at once. One that takes a request and says so late, or never answers, is
    not asked first again, and the caller decides whether to repeat the request.
    """

    def __init__(self, urls: str, ca_location: str | None, answer_bytes_max: int) -> None:
        """Connect to nothing. `urls` as in `split_urls`, `answer_bytes_max` as in
        `KeptConnections`.

        Raises `ValueError`; `SettingsError` if the file of authorities cannot be read.
        """
        self._urls = split_urls(urls)
        self._servers = [
            KeptConnections(url, context_for(url, "SESSIONARY_CONTROL_CA_LOCATION", ca_location), answer_bytes_max)
            for url in self._urls
        ]
        self._first: int = 0

    @property
    def url(self) -> str:
        """The URL of the server that is asked first: the one that answered last."""
        return self._urls[self._first]

    def send(self, request: Request, timeout_s: float, *, is_repeatable: bool = True) -> HttpResponse:
        """Send a request; return the answer, also one of an error.

        `timeout_s` bounds each wait for the network. `is_repeatable`: after a status of 500 or more
        another server may get the request too. Raises `Unanswered`.
        """
        return self._ask_in_turn(
            lambda server, connect_s: server.send(request, timeout_s, connect_s),
            lambda answer: answer.status,
            lambda _answer: None,
            is_repeatable=is_repeatable,
        )

    def open_stream(self, request: Request, timeout_s: float) -> OpenResponse:
        """Send a request on a separate connection; return the answer, whose body is not read yet.

        As `KeptConnections.open_stream`, but raises `Unanswered`.
        """
        return self._ask_in_turn(
            lambda server, connect_s: server.open_stream(request, timeout_s, connect_s),
            lambda opened: opened.answer.status,
            OpenResponse.close,
            is_repeatable=True,
        )

    def close_idle(self) -> None:
        """Close the idle connections; a later request opens one."""
        for server in self._servers:
            server.close_idle()

    def _ask_in_turn(
        self,
        ask: Callable[[KeptConnections, float | None], A],
        status_of: Callable[[A], int],
        drop: Callable[[A], None],
        *,
        is_repeatable: bool,
    ) -> A:
        count: int = len(self._urls)
        first: int = self._first  # another thread may change it
        unready: A | None = None
        failures: list[tuple[str, Exception]] = []
        for place in (*range(first, count), *range(first)):
            began_s = time.monotonic()
            try:
                answer = ask(self._servers[place], CONNECT_S if count > 1 else None)
            except (OSError, HTTPException) as error:
                failures.append((f"{self._urls[place]}{self._servers[place].via}", error))
                if not isinstance(error, NotConnected):
                    self._first = (place + 1) % count
                    break
                continue
            if status_of(answer) < 500:
                self._first = place
                if unready is not None:
                    drop(unready)
                return answer
            if unready is not None:
                drop(unready)
            unready = answer
            if not is_repeatable or time.monotonic() - began_s > _QUICK_S:
                self._first = (place + 1) % count
                break
        if unready is None:
            raise Unanswered(failures)
        return unready
