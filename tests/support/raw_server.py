"""A server of raw connections, which keeps, closes or cuts them as a test wants."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Serves each connection by a function; notes the connections and what was asked."""

    def __init__(self, serve: Callable[["Server", socket.socket, int], None]) -> None:
        self.asked: list[bytes] = []
        self.connections = 0
        self._serve = serve
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve_one, args=(connection, self.connections), daemon=True).start()

    def _serve_one(self, connection: socket.socket, number: int) -> None:
        with connection:
            self._serve(self, connection, number)

    def read_request(self, connection: socket.socket) -> bytes:
        """Return a request; empty if the client has closed the connection."""
        text = b""
        try:
            while b"\r\n\r\n" not in text:
                part = connection.recv(65_536)
                if not part:
                    return b""
                text += part
        except OSError:
            return b""
        self.asked.append(text)
        return text

    def stop(self) -> None:
        """Close everything. May be called again. On Linux only `shutdown` wakes a thread."""
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def serving(serve: Callable[[Server, socket.socket, int], None]) -> Iterator[Server]:
    server = Server(serve)
    try:
        yield server
    finally:
        server.stop()


def answer_all(server: Server, connection: socket.socket, number: int) -> None:
    """Answer each request, and keep the connection."""
    while server.read_request(connection):
        connection.sendall(OK)
