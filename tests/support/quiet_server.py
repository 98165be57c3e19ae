"""A server of pages for tests, which says nothing of a client that hangs up."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietServer(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1 from its construction on.

    The server of the standard library writes to stderr that a client hung up, from a thread that
    may outlive the test: the next test would find it in what its command wrote.
    """

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what a handler raises, unless the client hung up."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
