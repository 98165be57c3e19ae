"""A control API of which a test writes each answer to a follower, byte by byte."""

import json
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.support.certificates import Certificate


class StreamAnswer(NamedTuple):
    """An answer: its parts are sent one after the other; then it ends, unless it stays open."""

    parts: Iterable[bytes] = ()
    status: int = 200
    chunked: bool = True
    stays: bool = False
    headers: Mapping[str, str] = {}


def problem(status: int, reason: str, **headers: str) -> StreamAnswer:
    """Return an answer with a problem document."""
    body = json.dumps({"status": status, "reason": reason, "detail": f"reported so: {reason}"}).encode()
    return StreamAnswer((body,), status, chunked=False, headers=headers)


def message(place: str, document: Mapping[str, Any]) -> bytes:
    """Return the message that tells a state."""
    return f"id: {place}\nevent: state\ndata: {json.dumps(document)}\n\n".encode()


class StreamServer:
    """What was asked, and what is answered; the last answer is given again and again."""

    def __init__(self, answers: Iterable[StreamAnswer]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Mapping[str, str]]] = []  # path, and headers by lower-case name
        self.url = ""
        self.ending = threading.Event()


@contextmanager
def stream_server(*answers: StreamAnswer, certificate: Certificate | None = None) -> Iterator[StreamServer]:
    """Serve followers on a free port."""
    served = StreamServer(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.asked.append((self.path, {name.lower(): text for name, text in self.headers.items()}))
            answer = served.answers.pop(0) if len(served.answers) > 1 else served.answers[0]
            self.close_connection = True
            self.send_response(answer.status)
            for name, text in answer.headers.items():
                self.send_header(name.replace("_", "-"), text)
            if answer.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            for part in answer.parts:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if answer.chunked else part)
                self.wfile.flush()
            if answer.stays:
                served.ending.wait(30)
            elif answer.chunked:
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:
            return None

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing: readers leave when they like."""

    server = Quiet(("127.0.0.1", 0), Handler)
    scheme = "http"
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.certificate, certificate.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https"
    served.url = f"{scheme}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.ending.set()
        server.shutdown()
        thread.join()
        server.server_close()
