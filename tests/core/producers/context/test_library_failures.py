"""The outcome of calls by real libraries, against a service that fails."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sessionary.producers.context.failure_class import Outcome, outcome_of
from tests.core.producers.context.failing_service import closed_port, fail, failing_with, full_port, keep_silent
from tests.core.producers.context.library_calls import LIBRARIES, Request
from tests.support.certificates import CertificateAuthority
from tests.support.raw_server import Server

_SHORT_S = 0.15
_BIG = b"x" * (16 << 20)  # more than the buffers of two sockets take


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Request]]:
    """Requests by what becomes of them."""
    certificate = CertificateAuthority(tmp_path_factory.mktemp("untrusted")).issue("service").both
    servers = [Server(serve) for serve in (fail, keep_silent, failing_with(Path(certificate)))]
    url, silent, untrusted = (server.url for server in servers)
    with ExitStack() as opened:
        for server in servers:
            opened.callback(server.stop)
        closed, full = (f"http://127.0.0.1:{opened.enter_context(port())}" for port in (closed_port, full_port))
        yield {
            "refused": Request(f"{closed}/"),
            "no such name": Request("http://nothing.invalid/"),
            "no connection in time": Request(f"{full}/", _SHORT_S),
            "no TLS there": Request(f"{url.replace('http:', 'https:')}/"),
            "no handshake in time": Request(f"{silent.replace('http:', 'https:')}/", _SHORT_S),
            "an untrusted certificate": Request(f"{untrusted.replace('http:', 'https:')}/"),
            "no proxy there": Request("http://some.invalid/", proxy=closed),
            "a proxy that refuses": Request("https://some.invalid/", proxy=url),
            "no answer in time": Request(f"{url}/silent", _SHORT_S),
            "reset before it was read": Request(f"{url}/reset-unread"),
            "reset after it was read": Request(f"{url}/reset"),
            "closed without an answer": Request(f"{url}/close"),
            "half an answer": Request(f"{url}/half"),
            "not read in time": Request(f"{url}/deaf", _SHORT_S, _BIG),
            **{f"{code}": Request(f"{url}/status/{code}") for code in (*_UNKNOWN, *_REFUSED)},
        }


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Collect what the libraries leave of a call that was cut off: it would warn in other tests."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


_UNKNOWN = (408, 429, 500, 502, 503, 504)
_REFUSED = (400, 401, 403, 404, 409, 422)
OUTCOMES: dict[str, Outcome] = {
    **dict.fromkeys(
        ("refused", "no such name", "no connection in time", "no TLS there", "no handshake in time"), "not_sent"
    ),
    **dict.fromkeys(("an untrusted certificate", "no proxy there", "a proxy that refuses"), "not_sent"),
    **dict.fromkeys(("no answer in time", "reset before it was read", "reset after it was read"), "unknown"),
    **dict.fromkeys(("closed without an answer", "half an answer", "not read in time"), "unknown"),
    **dict.fromkeys(map(str, _UNKNOWN), "unknown"),
    **dict.fromkeys(map(str, _REFUSED), "refused"),
}


# asyncio leaves a connection open that was closed while its peer did not read.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_failure_is_what_became_of_its_request(library: str, requests: dict[str, Request]) -> None:
    found: dict[str, Outcome | str] = {}
    for name, request in requests.items():
        try:
            LIBRARIES[library](request)
        except Exception as error:  # noqa: BLE001 - the library's own classes
            found[name] = outcome_of(error)
        else:
            found[name] = "no error"
    assert found == OUTCOMES
