"""Free loopback ports."""

from __future__ import annotations

import socket
import sys

import pytest

from sessionary.infra.local import ports as ports_module
from sessionary.infra.local.ports import LOOPBACK, free_port, free_ports, is_free


def test_free_ports_are_distinct_and_can_be_listened_on() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(is_free(port) for port in ports)


def test_a_port_in_use_is_not_free_and_comes_back() -> None:
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        server.listen()
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a server listen on a reserved port")
def test_a_chosen_port_is_not_chosen_again_before_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with monkeypatch.context() as only_this:
        only_this.setattr(ports_module, "_LOWEST", port)
        only_this.setattr(ports_module, "_ephemeral_floor", lambda: port + 1)
        with pytest.raises(OSError, match="found 0 free ports of 1"):
            free_port()
    with socket.create_server((LOOPBACK, port)) as server, socket.create_connection((LOOPBACK, port)):
        server.accept()[0].close()


def test_the_oldest_reservations_are_given_up() -> None:
    for _ in range(3):
        free_ports(50)
    assert len(ports_module._reserved) <= 64
