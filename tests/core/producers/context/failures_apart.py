"""The outcome of calls by gRPC and by wrapped retries; run by `packaging/test_libraries_apart.py`.

Not a module of tests for every environment: none of these packages is installed for the others.
"""

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from sessionary.producers.context.failure_class import Outcome, asked_wait_s, outcome_of
from tests.core.producers.context.failing_service import closed_port, fail, keep_silent
from tests.core.producers.context.library_calls import LIBRARIES, Request
from tests.support.raw_server import serving

grpc: Any = importlib.import_module("grpc")
tenacity: Any = importlib.import_module("tenacity")

_UNKNOWN = ("CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
_REFUSED = ("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "FAILED_PRECONDITION", "ABORTED")
_NEVER = ("OUT_OF_RANGE", "UNIMPLEMENTED", "UNAUTHENTICATED")
OUTCOMES: dict[str, Outcome] = {
    **dict.fromkeys(_UNKNOWN, "unknown"),
    **dict.fromkeys((*_REFUSED, *_NEVER), "refused"),
}


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with the code that a call's name is."""

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: Any) -> bytes:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", "1500"),))
            context.abort(getattr(grpc.StatusCode, details.method.rpartition("/")[2]), "said")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    futures: Any = importlib.import_module("concurrent.futures")
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[_Service()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def failure_of(address: str, name: str, seconds: float = 60) -> Exception:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(f"/service/{name}")(b"", timeout=seconds)
    error: Exception = raised.value
    return error


@pytest.mark.parametrize("code", OUTCOMES)
def test_a_code_says_the_outcome(code: str, address: str) -> None:
    error = failure_of(address, code)
    assert outcome_of(error) == OUTCOMES[code]
    assert asked_wait_s(error, 0.0) == 1.5


def test_what_was_not_sent_may_be_made_again() -> None:
    with closed_port() as port:
        assert outcome_of(failure_of(f"127.0.0.1:{port}", "OK")) == "not_sent"
    assert outcome_of(failure_of("nothing.invalid:1", "OK")) == "not_sent"


def test_a_call_of_asyncio_says_the_same(address: str) -> None:
    async def call(address: str, name: str) -> Outcome | None:
        async with grpc.aio.insecure_channel(address) as channel:
            try:
                await channel.unary_unary(f"/service/{name}")(b"")
            except grpc.RpcError as error:
                return outcome_of(error)
            return None

    assert asyncio.run(call(address, "INTERNAL")) == "unknown"
    assert asyncio.run(call(address, "NOT_FOUND")) == "refused"
    with closed_port() as port:
        assert asyncio.run(call(f"127.0.0.1:{port}", "OK")) == "not_sent"


def test_a_server_that_is_silent_leaves_the_outcome_open() -> None:
    with serving(keep_silent) as server:
        assert outcome_of(failure_of(server.url.removeprefix("http://"), "OK", 0.3)) == "unknown"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("path", "outcome"), [("status/503", "unknown"), ("status/404", "refused")])
def test_retries_are_what_the_last_try_was(library: str, path: str, outcome: Outcome) -> None:
    with serving(fail) as server:
        tries = tenacity.Retrying(stop=tenacity.stop_after_attempt(2))
        with pytest.raises(tenacity.RetryError) as raised:
            tries(LIBRARIES[library], Request(f"{server.url}/{path}"))
    assert outcome_of(raised.value) == outcome


def test_a_full_pool_sends_nothing() -> None:
    httpx: Any = importlib.import_module("httpx")
    limits = {"limits": httpx.Limits(max_connections=1), "timeout": httpx.Timeout(60, pool=0.2)}
    with serving(fail) as server, httpx.Client(trust_env=False, **limits) as client:
        with client.stream("POST", f"{server.url}/half"), pytest.raises(httpx.PoolTimeout) as raised:
            client.post(server.url)
        assert server.connections == 1
    assert outcome_of(raised.value) == "not_sent"
