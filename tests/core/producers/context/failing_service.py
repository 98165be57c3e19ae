"""A service on a local socket that fails in the way that the path of a request names."""

import contextlib
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.raw_server import Server

_TLS = b"\x16"  # begins a handshake
_RESET = struct.pack("ii", 1, 0)  # with SO_LINGER, `close` resets the connection


def fail(server: Server, connection: socket.socket, number: int) -> None:
    """Answer `/status/<code>` with that code, `/half` with half an answer, and others as named."""
    with contextlib.suppress(OSError):
        begin = connection.recv(4_096, socket.MSG_PEEK)
        if b"/deaf" in begin:
            _await_hang_up(connection)  # reads nothing: the sender's buffers fill up
        elif begin.startswith(_TLS):
            connection.sendall(b"HTTP/1.1 400 Not Encrypted\r\n\r\n")
        elif b"/reset-unread" in begin:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            _fail(connection, _read_request(server, connection).split(b" ")[1].decode(), server)


def _fail(connection: socket.socket, path: str, server: Server) -> None:
    if "/status/" in path:
        status = path.partition("/status/")[2].partition("/")[0]
        head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close"
        connection.sendall(f"{head}\r\n\r\n{{}}".encode())
    elif "/half" in path:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 200\r\n\r\nhalf")
    elif ":" in path:  # asked as a proxy
        connection.sendall(b"HTTP/1.1 503 No Way\r\nContent-Length: 0\r\n\r\n")
    elif "/reset" in path:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    elif "/silent" in path:
        while connection.recv(65_536):
            pass


def _await_hang_up(connection: socket.socket) -> None:
    hang_up = select.poll()
    hang_up.register(connection, select.POLLRDHUP)
    hang_up.poll(60_000)


def _read_request(server: Server, connection: socket.socket) -> bytes:
    """Read a request whole: what is not read would make the end of the connection a reset."""
    head, _, body = server.read_request(connection).partition(b"\r\n\r\n")
    names = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    length = sum(int(value) for name, _, value in names if name.lower() == b"content-length")
    while len(body) < length:
        body += connection.recv(65_536)
    return head


def keep_silent(server: Server, connection: socket.socket, number: int) -> None:
    """Take everything, and say nothing, until the client leaves."""
    with contextlib.suppress(OSError):
        while connection.recv(65_536):
            pass


def failing_with(certificate: Path) -> Callable[[Server, socket.socket, int], None]:
    """Return `fail` behind TLS, with a certificate that no client trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def shake_hands(server: Server, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            server.read_request(secured)

    return shake_hands


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port of which each connection is refused: it is bound, and does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextlib.contextmanager
def full_port() -> Iterator[int]:
    """Yield a port that takes no further connection, and refuses none: its queue is full."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
