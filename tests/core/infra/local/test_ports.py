"""Free loopback ports."""

from __future__ import annotations

import socket

from sessionary.infra.local.ports import LOOPBACK, free_ports, is_free


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
