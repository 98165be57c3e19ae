"""A fake control API on a free port; a function decides its answers."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from threading import Thread
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.support.quiet_server import QuietServer


class ControlRequest(NamedTuple):
    """A client's request."""

    session_id: str
    query: dict[str, str]
    authorization: str | None
    body: bytes = b""


class ControlResponse(NamedTuple):
    """The answer."""

    status: int
    body: object
    headers: dict[str, str] = {}


@contextmanager
def control_server(answer: Callable[[ControlRequest], ControlResponse]) -> Iterator[str]:
    """Serve `/v1/sessions/{id}` and `/v1/sessions/poll` as `answer` says; yield the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            name, token = url.path.rpartition("/")[2], self.headers.get("Authorization")
            response = answer(ControlRequest(name, query, token, content))
            body = response.body if isinstance(response.body, bytes) else json.dumps(response.body).encode()
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = QuietServer(Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
