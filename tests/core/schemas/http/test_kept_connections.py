"""Connections that are kept open, against servers that keep, close and cut them."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException

import pytest

from sessionary.schemas.http import kept_connections, proxies
from sessionary.schemas.http.kept_connections import KEPT_MAX, KeptConnections, Request
from tests.support.raw_server import OK, Server, answer_all, serving
from tests.support.waiting import wait_until

BYTES_MAX = 1 << 20
WAIT_S = 60.0
ASK = Request("/v1/x?n=1", {"Accept": "application/json"})


@contextmanager
def connected(url: str, answer_bytes_max: int = BYTES_MAX) -> Iterator[KeptConnections]:
    connections = KeptConnections(url, None, answer_bytes_max)
    try:
        yield connections
    finally:
        connections.close_idle()


def test_requests_one_after_the_other_share_a_connection() -> None:
    with serving(answer_all) as server, connected(server.url) as connections:
        for _ in range(3):
            answer = connections.send(ASK, WAIT_S)
            assert (answer.status, answer.body) == (200, b"ok")
        assert connections.send(ASK._replace(body=b""), WAIT_S).status == 200
        assert (server.connections, len(server.asked)) == (1, 4)
        assert [text.split(b" ")[:2] for text in server.asked] == [[b"GET", b"/v1/x?n=1"]] * 3 + [
            [b"POST", b"/v1/x?n=1"]
        ]


def test_requests_side_by_side_have_connections_of_their_own_and_few_are_kept() -> None:
    many = KEPT_MAX + 3
    together = threading.Barrier(many)

    def answer_together(server: Server, connection: socket.socket, number: int) -> None:
        if server.read_request(connection):
            together.wait(60)
            connection.sendall(OK)
            answer_all(server, connection, number)

    with (
        serving(answer_together) as server,
        connected(server.url) as connections,
        ThreadPoolExecutor(many) as threads,
    ):
        answers = list(threads.map(lambda _: connections.send(ASK, WAIT_S), range(many)))
        assert {answer.body for answer in answers} == {b"ok"}
        assert server.connections == many
        assert len(connections._idle) == KEPT_MAX


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    closed = threading.Event()

    def answer_once(server: Server, connection: socket.socket, number: int) -> None:
        server.read_request(connection)
        connection.sendall(OK)
        connection.shutdown(socket.SHUT_RDWR)
        closed.set()

    with serving(answer_once) as server, connected(server.url) as connections:
        for _ in range(3):
            assert connections.send(ASK, WAIT_S).body == b"ok"
            assert closed.wait(60)
            closed.clear()
        assert (server.connections, len(server.asked)) == (3, 3)


def test_a_request_is_sent_again_if_its_kept_connection_is_closed_under_it() -> None:
    def close_at_the_second(server: Server, connection: socket.socket, number: int) -> None:
        server.read_request(connection)
        connection.sendall(OK)
        if number == 1:
            server.read_request(connection)  # and close without an answer
        else:
            answer_all(server, connection, number)

    with serving(close_at_the_second) as server, connected(server.url) as connections:
        assert [connections.send(ASK, WAIT_S).body for _ in range(3)] == [b"ok"] * 3
        assert (server.connections, len(server.asked)) == (2, 4)


def test_a_new_connection_that_is_cut_is_an_error_and_the_request_is_not_repeated() -> None:
    def close_unanswered(server: Server, connection: socket.socket, number: int) -> None:
        server.read_request(connection)

    with serving(close_unanswered) as server, connected(server.url) as connections:
        with pytest.raises((OSError, HTTPException)):
            connections.send(ASK, WAIT_S)
        assert len(server.asked) == 1
        assert not connections._idle


def test_a_server_that_is_silent_times_out_and_its_connection_is_not_kept() -> None:
    said = threading.Event()

    def answer_once_then_wait(server: Server, connection: socket.socket, number: int) -> None:
        server.read_request(connection)
        connection.sendall(OK)
        server.read_request(connection)
        said.wait(60)

    with serving(answer_once_then_wait) as server, connected(server.url) as connections:
        assert connections.send(ASK, WAIT_S).body == b"ok"
        with pytest.raises(TimeoutError):
            connections.send(ASK, 0.05)
        wait_until(lambda: len(server.asked) == 2, 60, "the server to read the second request")
        said.set()
        assert not connections._idle
        assert server.connections == 1


def test_an_answer_that_is_longer_than_allowed_is_cut_and_its_connection_not_kept() -> None:
    with serving(answer_all) as server, connected(server.url, 1) as connections:
        assert [connections.send(ASK, WAIT_S).body for _ in range(2)] == [b"o", b"o"]
        assert server.connections == 2


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answer_all) as server, connected(server.url) as connections:
        connections.send(ASK, WAIT_S)
        monkeypatch.setattr(kept_connections, "IDLE_S_MAX", 0.0)
        connections.send(ASK, WAIT_S)
        assert server.connections == 2


def test_a_child_of_a_fork_opens_a_connection_of_its_own() -> None:
    with serving(answer_all) as server, connected(server.url) as connections:
        connections.send(ASK, WAIT_S)
        child = os.fork()
        if child == 0:
            os._exit(0 if connections.send(ASK, WAIT_S).body == b"ok" else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert server.connections == 2
        assert connections.send(ASK, WAIT_S).body == b"ok"
        assert server.connections == 2


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answer_all) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:secret@"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with connected("http://control.invalid:8600/base") as connections:
            assert connections.send(ASK, WAIT_S).body == b"ok"
        assert proxy.asked[0].startswith(b"GET http://control.invalid:8600/base/v1/x?n=1 ")
        assert b"Proxy-Authorization: Basic bWU6c2VjcmV0" in proxy.asked[0]


def test_whether_a_proxy_is_asked_is_looked_up_once_by_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS and Windows the look-up may wait for the server's address."""
    looked_up: list[str] = []

    def bypass(host: str) -> bool:
        looked_up.append(host)
        return True

    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setattr(kept_connections, "proxy_bypass", bypass)
    monkeypatch.setattr(proxies, "is_loopback", lambda _host: False)
    with serving(answer_all) as server, connected(server.url) as connections:
        assert looked_up == []
        assert [connections.send(ASK, WAIT_S).body for _ in range(3)] == [b"ok"] * 3
        connections.close_idle()
        assert connections.send(ASK, WAIT_S).body == b"ok"
        assert looked_up == [server.url.removeprefix("http://")]


@pytest.mark.parametrize("url", ["http:///v1", "http://h:port"])
def test_what_is_no_url_of_a_server_is_said_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        KeptConnections(url, None, BYTES_MAX)


def test_connections_are_closed_with_the_last_reference() -> None:
    with serving(answer_all) as server:
        connections = KeptConnections(server.url, None, BYTES_MAX)
        connections.send(ASK, WAIT_S)
        (idle,) = connections._idle
        kept = idle.connection.sock
        del idle, connections
        assert kept.fileno() == -1
