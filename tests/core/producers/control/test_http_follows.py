"""Following over HTTP and HTTPS, by a server that sends what a test wrote down."""

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.producers import (
    AuthenticationFailed,
    Invalid,
    ProducerSettings,
    SessionFollower,
    SessionLost,
    SettingsError,
    Unavailable,
)
from sessionary.producers.control import http_follows
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.control.http_follows import ChunkedBody, EventParser, HttpFollows, StreamedEvent
from tests.core.producers.control.test_http_control import BODY
from tests.support.certificates import CertificateAuthority
from tests.support.stream_server import StreamAnswer, message, problem, stream_server
from tests.support.waiting import wait_until

END = b"event: end\ndata: {}\n\n"


def reported(offset: int, version: int) -> bytes:
    return message(f"1:{offset}", {**BODY, "version": version, "verdict": None})


def follows_at(url: str | None, **settings: Any) -> HttpFollows:
    given = ProducerSettings.from_env({}, control_url=url, api_token="token-1", **settings)
    return HttpFollows(HttpControl(given, "acme"))


def follower_at(url: str, timeout_s: float | None = None, **settings: Any) -> SessionFollower:
    return SessionFollower(follows_at(url, **settings), "s", lambda: None, 20.0, timeout_s)


@pytest.mark.parametrize("chunked", [True, False])
def test_states_are_read_from_any_pieces(chunked: bool) -> None:
    sent = reported(5, 1) + b":\n\n" + reported(7, 2) + reported(8, 3) + END
    pieces = [sent[n : n + 97] for n in range(0, len(sent), 97)]
    for parts in (pieces, [sent]):
        with stream_server(StreamAnswer(parts, chunked=chunked)) as server, follower_at(server.url) as follower:
            assert [view.version for view in follower] == [1, 2, 3]
            assert follower.position == (1, 8)
            path, headers = server.asked[0]
        assert path.startswith("/v1/sessions/s/follow?")
        assert "tenant=acme" in path
        assert (headers["authorization"], headers["accept"]) == ("Bearer token-1", "text/event-stream")
        assert "last-event-id" not in headers


def test_over_tls_too(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate = authority.issue("localhost")
    parts = [reported(5, 1), reported(6, 2) + reported(7, 3)]
    with stream_server(StreamAnswer(parts, stays=True), certificate=certificate) as server:
        settings = {"control_ca_location": str(authority.file)}
        with follower_at(server.url, 0.2, **settings) as follower:
            assert [view.version for view in follower] == [1, 2, 3]
            assert follower.wait_next(0.01) is None
        with pytest.raises(Unavailable, match="certificate"):
            follows_at(server.url).open_states("s", None, 1.0)


def test_a_stream_that_ends_is_asked_for_again_after_its_last_message() -> None:
    answers = (
        StreamAnswer([reported(5, 1), reported(6, 2)]),
        StreamAnswer([reported(7, 3)[:20]]),  # cut in the middle
        problem(503, "not_ready", Retry_After="1"),
        StreamAnswer([b"not a stream\xff\n"], chunked=False),
        StreamAnswer([reported(6, 2), reported(9, 4), END]),
    )
    with stream_server(*answers) as server, follower_at(server.url) as follower:
        assert [view.version for view in follower] == [1, 2, 4]
        assert [headers.get("last-event-id") for _, headers in server.asked] == [None, "1:6", "1:6", "1:6", "1:6"]


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (401, "unauthorized", AuthenticationFailed),
        (403, "wrong_tenant", AuthenticationFailed),
        (404, "unknown_session", SessionLost),
        (400, "invalid_value", Invalid),
        (410, "session_archived", SessionLost),
    ],
)
def test_final_answers_are_errors(status: int, reason: str, error: type[Exception]) -> None:
    with stream_server(problem(status, reason)) as server, follower_at(server.url) as follower:
        with pytest.raises(error):
            next(follower)
        assert len(server.asked) == 1


def test_an_archived_session_ends_the_iteration_after_a_state() -> None:
    answers = StreamAnswer([reported(5, 1)]), problem(410, "session_archived")
    with stream_server(*answers) as server, follower_at(server.url) as follower:
        assert [view.version for view in follower] == [1]
        assert follower.is_archived


def test_workers_that_know_no_followers_or_have_too_many_are_asked_again() -> None:
    answers = (
        problem(404, "not_found"),
        problem(405, "method_not_allowed"),
        problem(503, "too_many_followers"),
        StreamAnswer([reported(5, 1), END]),
    )
    with stream_server(*answers) as server, follower_at(server.url) as follower:
        assert [view.version for view in follower] == [1]
        assert len(server.asked) == 4


def test_a_wait_ends_in_its_time_and_loses_nothing() -> None:
    released = threading.Event()

    def parts() -> Any:
        sent = reported(6, 2)
        yield reported(5, 1)
        yield sent[:30]
        released.wait(20)
        yield sent[30:] + END

    with stream_server(StreamAnswer(parts())) as server, follower_at(server.url) as follower:
        assert next(follower).version == 1
        began_s = time.monotonic()
        assert follower.wait_next(0.05) is None
        assert time.monotonic() - began_s < http_follows.SILENT_S
        released.set()
        assert [view.version for view in follower] == [2]
        assert len(server.asked) == 1


def test_a_server_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_follows, "SILENT_S", 0.2)
    answers = StreamAnswer([reported(5, 1)], stays=True), StreamAnswer([reported(6, 2), END])
    with stream_server(*answers) as server, follower_at(server.url) as follower:
        assert [view.version for view in follower] == [1, 2]
        assert len(server.asked) == 2


@pytest.mark.parametrize("waits", [True, False])
def test_closing_frees_the_connection_whether_a_thread_waits_or_not(waits: bool) -> None:
    with stream_server(StreamAnswer([reported(5, 1)], stays=True)) as server:
        follower = follower_at(server.url)
        assert next(follower).version == 1
        stream: Any = follower._stream
        waiting = threading.Thread(target=lambda: list(follower), daemon=True)
        if waits:
            waiting.start()
            wait_until(stream._reading.locked, 20, "the thread to wait")
        follower.close()
        if waits:
            waiting.join(20)
            assert not waiting.is_alive()
        assert stream._socket.fileno() == -1


def test_without_a_url_nothing_is_followed() -> None:
    with pytest.raises(SettingsError, match="SESSIONARY_CONTROL_URL"):
        follows_at(None).check_configured()


def test_a_place_that_is_no_number_is_no_state() -> None:
    answers = StreamAnswer([message("x", BODY)]), StreamAnswer([json.dumps(BODY).encode()]), StreamAnswer([END])
    with stream_server(*answers) as server, follower_at(server.url) as follower:
        with pytest.raises(SessionLost):
            next(follower)
        assert len(server.asked) == 3


STREAM = (
    ':\n\nid: 0:5\nevent: state\ndata: {"n": 1}\n\n: a comment\n\nretry: 5\n\n'
    "event: state\r\nid: 0:6\r\ndata: ä\r\ndata: b\r\n\r\nevent: end\ndata: {}\n\n"
).encode()
MESSAGES = [
    StreamedEvent("state", "0:5", '{"n": 1}'),
    StreamedEvent("state", "0:6", "ä\nb"),
    StreamedEvent("end", None, "{}"),
]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[first:last] for first, last in itertools.pairwise(places)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_messages_are_put_together_from_any_pieces(cuts: list[int]) -> None:
    parser = EventParser()
    assert [event for piece in pieces(STREAM, cuts) for event in parser.take_bytes(piece)] == MESSAGES


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=20))
def test_a_chunked_body_is_decoded_from_any_pieces(chunks: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(b"%x;x=y\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    body = ChunkedBody()
    assert b"".join(body.take_bytes(piece) for piece in pieces(sent, cuts)) == b"".join(chunks)
    assert body.is_over


def test_what_is_no_such_stream_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (b"<html>\r\n", b"x" * 2_000):
        with pytest.raises(ValueError, match=r"invalid literal|without a size"):
            ChunkedBody().take_bytes(wrong)
    monkeypatch.setattr(http_follows, "MESSAGE_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        EventParser().take_bytes(b"data: " + b"x" * 100)
