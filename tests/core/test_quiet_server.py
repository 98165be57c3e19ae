"""The server of pages for tests tells of its own faults, and of no client that hangs up."""

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import RemoteDisconnected
from http.server import BaseHTTPRequestHandler

import pytest

from tests.support.quiet_server import QuietServer
from tests.support.waiting import wait_until


@contextmanager
def serving(error: Exception) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            raise error

    with QuietServer(Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_fault_is_told_and_a_client_that_hangs_up_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    for error in (BrokenPipeError("hung up"), ValueError("a bug of the test's")):
        with serving(error) as url, pytest.raises(RemoteDisconnected):
            urllib.request.urlopen(url, timeout=60)
    said: list[str] = []

    def is_told() -> bool:
        said.append(capfd.readouterr().err)
        return "ValueError: a bug of the test's" in "".join(said)

    wait_until(is_told, 60, "the fault")
    assert "hung up" not in "".join(said)
