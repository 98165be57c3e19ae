"""A server over HTTP that ends each answer before it is whole."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.support.quiet_server import QuietServer


@contextmanager
def serve_cut_answers(body: bytes, missing: int) -> Iterator[str]:
    """Serve on a free port; each answer is `body`, and says that it has `missing` bytes more."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + missing))
            self.end_headers()
            self.wfile.write(body)

        do_GET = answer  # noqa: N815 - the standard library's names
        do_POST = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with QuietServer(Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
