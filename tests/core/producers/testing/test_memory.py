"""The in-memory outside itself."""

import pytest

from sessionary.producers import ProducerError
from sessionary.producers.testing import memory_client
from tests.core.producers.control.test_cleanup_responder import request


def test_without_a_handler_a_request_is_an_error() -> None:
    client, memory = memory_client()
    with client, pytest.raises(ProducerError):
        memory.request_cleanup(request())
