"""The proxy of the chaos runs: what it does to a connection."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from sessionary.infra.local.ports import LOOPBACK, free_port
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

DELAY_S = 0.2


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that returns what it receives."""
    server = socket.create_server((LOOPBACK, 0))

    def echo(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(4_096):
                    connection.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield int(server.getsockname()[1])
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.fixture
def proxy(echo_port: int) -> Iterator[TcpProxy]:
    with TcpProxy(free_port(), echo_port) as made:
        yield made


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((LOOPBACK, proxy.port), 60)


def say(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return read_answer(connection, len(data))


def read_answer(connection: socket.socket, size: int) -> bytes:
    answer = b""
    while len(answer) < size and (data := connection.recv(size - len(answer))):
        answer += data
    return answer


def test_a_proxy_forwards_both_ways_and_ends_with_either_side(proxy: TcpProxy) -> None:
    large = bytes(range(256)) * 4_000
    with connect(proxy) as first, connect(proxy) as second:
        assert say(first, b"one") == b"one"
        assert say(second, b"two") == b"two"
        sending = threading.Thread(target=first.sendall, args=(large,))
        sending.start()
        assert read_answer(first, len(large)) == large
        sending.join()
    wait_until(lambda: not proxy._writers, 60, "both connections to be closed")


def test_held_packets_come_later_and_the_connection_stays(proxy: TcpProxy) -> None:
    with connect(proxy) as connection:
        assert say(connection, b"before") == b"before"
        proxy.hold_packets()
        connection.settimeout(DELAY_S)
        connection.sendall(b"during")
        with pytest.raises(TimeoutError):
            connection.recv(6)
        with connect(proxy) as late:
            proxy.pass_packets()
            connection.settimeout(60)
            assert read_answer(connection, 6) == b"during"
            assert say(late, b"late") == b"late"


def test_delayed_packets_are_late_in_both_directions(proxy: TcpProxy) -> None:
    with connect(proxy) as connection:
        assert say(connection, b"before") == b"before"
        proxy.delay_packets(DELAY_S)
        began_s = time.monotonic()
        assert say(connection, b"late") == b"late"
        assert time.monotonic() - began_s >= 2 * DELAY_S


def test_a_reset_closes_all_connections_and_new_ones_pass(proxy: TcpProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert say(first, b"one") + say(second, b"two") == b"onetwo"
        assert proxy.reset_connections() == 2
        for connection in (first, second):
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
    with connect(proxy) as connection:
        assert say(connection, b"again") == b"again"
