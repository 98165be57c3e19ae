"""A processor's control API with fixed answers, for commands."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from tests.support.quiet_server import QuietServer


class FakeControlApi:
    """Answers each path with what `answers` has for it; `asked` has the requests in order."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[AskedRequest] = []
        self.url = ""

    def answer_problem(self, path: str, status: int, reason: str, detail: str) -> None:
        self.answers[path] = status, {"status": status, "reason": reason, "detail": detail}


class AskedRequest(NamedTuple):
    method: str
    path: str
    authorization: str | None
    body: str = ""


def partition(number: int, state: str = "open", **fields: Any) -> dict[str, Any]:
    """Return a partition as the control API describes it."""
    names = ("instance", "url", "reason", "detail", "halted_at_ms", "next_offset", "batch_number", "live_rows")
    return {"partition": number, "state": state} | dict.fromkeys(names) | fields


HALTED = partition(
    1, "halted", instance="w1", reason="log_gap", detail="the log begins at 7", halted_at_ms=1_700_000_000_000
)


@contextmanager
def serve_fake_api() -> Iterator[FakeControlApi]:
    """Serve a fake on a free port."""
    api = FakeControlApi()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            path = self.requestline.split()[1]  # `self.path` has one slash of several at its beginning
            sent = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            api.asked.append(AskedRequest(self.command, path, self.headers["Authorization"], sent))
            status, body = api.answers.get(path, (404, "no page"))
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = answer  # noqa: N815 - the standard library's names
        do_POST = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with QuietServer(Handler) as server:
        api.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()
