"""Fixtures for pytest, loaded by each pytest in an environment that has the package.

    def test_my_agent(sessionary_client, sessionary_memory): ...

It is no module of `sessionary.producers`, and imports that only for a test that asks for a fixture:
other tests in the environment need not wait for the client's import.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sessionary.producers import AsyncSessionClient, SessionClient
    from sessionary.producers.testing import InMemoryTransport


@pytest.fixture
def sessionary_memory() -> InMemoryTransport:
    """The events of a test's clients, judged by the newest rules, on a clock the test moves."""
    from sessionary.producers.testing import InMemoryTransport

    return InMemoryTransport()


@pytest.fixture
def sessionary_client(sessionary_memory: InMemoryTransport) -> Iterator[SessionClient]:
    """A client of tenant `acme`, service `service` and agent `agent` that sends to the memory.

    For a client with other names: `memory_client(..., memory=sessionary_memory)`.
    """
    from sessionary.producers.testing import memory_client

    client, _ = memory_client(memory=sessionary_memory)
    with client:
        yield client


@pytest.fixture
def sessionary_async_client(sessionary_client: SessionClient) -> AsyncSessionClient:
    """The same client for asyncio."""
    from sessionary.producers import AsyncSessionClient

    return AsyncSessionClient.wrap(sessionary_client)
