"""Addresses without a broker, and a beginning outside of all work."""

import socket
from collections.abc import Iterator

import pytest

from sessionary.producers.context.scope import NO_SCOPE, _scope


@pytest.fixture
def closed_address() -> Iterator[str]:
    """An address where no server listens, and where none can begin to."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


@pytest.fixture
def silent_address() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _outside() -> None:
    """Begin outside of all work: many tests let a process die in a run or a session."""
    _scope.set(NO_SCOPE)
