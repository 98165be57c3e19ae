"""An HTTPS server that gives one answer to every request, and keeps the requests' headers."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from tests.support.certificates import Certificate


class _Handler(BaseHTTPRequestHandler):
    server: "HttpsServer"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.asked.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(200)
        self.send_header("Content-Type", self.server.content_type)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


class HttpsServer(ThreadingHTTPServer):
    """Serves on 127.0.0.1 from construction to `close`."""

    daemon_threads: ClassVar[bool] = True  # type: ignore[misc]

    def __init__(self, certificate: Certificate, answer: bytes, content_type: str = "application/json") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.content_type = answer, content_type
        self.asked: list[dict[str, str]] = []
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.certificate, certificate.key)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that do not believe the certificate hang up."""

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
