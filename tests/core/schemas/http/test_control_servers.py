"""Several servers of one control API, of which some are away or not ready."""

import re
import socket

import pytest

from sessionary.schemas.http import control_servers
from sessionary.schemas.http.control_servers import ControlServers, Unanswered, split_urls
from sessionary.schemas.http.kept_connections import Request
from tests.support.raw_server import Server, answer_all, serving

BYTES_MAX = 1 << 20
WAIT_S = 60.0
ASK = Request("/v1/x", {})
UNREADY = b"HTTP/1.1 503 Not ready\r\nContent-Length: 0\r\n\r\n"


def answer_unready(server: Server, connection: socket.socket, number: int) -> None:
    while server.read_request(connection):
        connection.sendall(UNREADY)


def cut_off(server: Server, connection: socket.socket, number: int) -> None:
    """Take a request, and close without an answer."""
    server.read_request(connection)


@pytest.fixture
def away() -> str:
    """The URL of a server that is away."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def servers_of(*urls: str) -> ControlServers:
    return ControlServers(",".join(urls), None, BYTES_MAX)


def test_the_next_server_is_asked_if_one_is_away_and_stays_the_first(away: str) -> None:
    with serving(answer_all) as one, serving(answer_all) as two:
        servers = servers_of(away, one.url, two.url)
        assert servers.url == away
        assert [servers.send(ASK, WAIT_S).body for _ in range(3)] == [b"ok"] * 3
        assert (servers.url, one.connections, len(two.asked)) == (one.url, 1, 0)
        one.stop()
        assert servers.send(ASK, WAIT_S).body == b"ok"
        assert (servers.url, len(two.asked)) == (two.url, 1)
        servers.close_idle()


def test_a_server_that_is_not_ready_is_passed_over_and_its_answer_given_if_none_is() -> None:
    with serving(answer_unready) as one, serving(answer_all) as two:
        servers = servers_of(one.url, two.url)
        assert servers.send(ASK, WAIT_S).status == 200
        assert servers.send(ASK, WAIT_S).status == 200
        assert (len(one.asked), len(two.asked)) == (1, 2)
        two.stop()
        assert servers.send(ASK, WAIT_S).status == 503
        servers.close_idle()


def test_a_stream_is_opened_at_a_server_that_is_ready(away: str) -> None:
    with serving(answer_unready) as one, serving(answer_all) as two:
        servers = servers_of(away, one.url, two.url)
        opened = servers.open_stream(ASK, WAIT_S)
        assert (opened.answer.status, opened.answer.read()) == (200, b"ok")
        assert servers.url == two.url
        opened.close()


def test_what_may_have_been_done_is_not_repeated_at_another_server(away: str) -> None:
    with serving(answer_unready) as one, serving(answer_all) as two:
        servers = servers_of(away, one.url, two.url)
        assert servers.send(ASK, WAIT_S, is_repeatable=False).status == 503
        assert (len(one.asked), len(two.asked)) == (1, 0)
        servers.close_idle()


def test_a_server_that_takes_a_request_without_an_answer_is_not_the_first_again() -> None:
    with serving(cut_off) as one, serving(answer_all) as two:
        servers = servers_of(one.url, two.url)
        with pytest.raises(Unanswered, match=re.escape(one.url)):
            servers.send(ASK, WAIT_S)
        assert servers.send(ASK, WAIT_S).body == b"ok"
        assert (len(one.asked), len(two.asked)) == (1, 1)
        servers.close_idle()


def test_a_server_that_says_late_that_it_is_not_ready_is_not_the_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not reach the partition's owner, which the next one does."""
    monkeypatch.setattr(control_servers, "_QUICK_S", -1.0)
    with serving(answer_unready) as one, serving(answer_all) as two:
        servers = servers_of(one.url, two.url)
        assert servers.send(ASK, WAIT_S).status == 503
        assert servers.send(ASK, WAIT_S).body == b"ok"
        assert (len(one.asked), len(two.asked)) == (1, 1)
        servers.close_idle()


def test_each_server_that_is_away_is_named(away: str) -> None:
    other = "http://127.0.0.1:1"
    with pytest.raises(Unanswered) as raised:
        servers_of(away, other).send(ASK, WAIT_S)
    assert [url for url, _ in raised.value.failures] == [away, other]
    assert away in str(raised.value)
    assert other in str(raised.value)


def test_a_host_that_takes_no_connection_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packets are dropped: the system would wait for minutes."""
    monkeypatch.setattr(control_servers, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, serving(answer_all) as two:
        waiting = []  # connections that the server does not accept; one more would wait for its turn
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(full.getsockname())
            waiting.append(one)
        servers = servers_of(f"http://127.0.0.1:{full.getsockname()[1]}", two.url)
        assert servers.send(ASK, WAIT_S).body == b"ok"
        assert servers.url == two.url
        servers.close_idle()
        for one in waiting:
            one.close()


def test_urls_are_split_at_commas_and_a_wrong_one_is_named() -> None:
    assert split_urls("http://a:1, https://b/x/ ,http://a:1") == ["http://a:1", "https://b/x/"]
    for text, wrong in (("http://a:1,b:2", "'b:2'"), ("http://a,", "''"), ("http://a http://b", "'http://a http://b'")):
        with pytest.raises(ValueError, match=re.escape(wrong)):
            split_urls(text)
