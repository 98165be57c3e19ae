"""Free loopback ports.

Ports are picked below the range from which the kernel serves outgoing connections: a server that was killed finds its
port again at its next start, where a port of that range may meanwhile be the local end of somebody's connection.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

__all__ = ["LOOPBACK", "free_port", "free_ports", "is_free"]

LOOPBACK = "127.0.0.1"
_LOWEST = 12_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_FLOOR_DEFAULT = 32_768
_TRIES_MAX = 1_000


def _ephemeral_floor() -> int:
    try:
        floor = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_FLOOR_DEFAULT
    return floor if floor > _LOWEST + _TRIES_MAX else _EPHEMERAL_FLOOR_DEFAULT


def _bound(port: int) -> socket.socket | None:
    """A socket bound to the port, or None. SO_REUSEADDR as servers set it: a port in TIME_WAIT counts as free."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        # Two sockets with SO_REUSEADDR may both bind; only one may listen.
        probe.listen(1)
    except OSError:
        probe.close()
        return None
    return probe


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    probe = _bound(port)
    if probe is None:
        return False
    probe.close()
    return True


def free_ports(count: int) -> list[int]:
    """`count` distinct ports that nobody listens on at this moment. They are not reserved: use them soon."""
    chooser = random.SystemRandom()
    floor = _ephemeral_floor()
    ports: list[int] = []
    with ExitStack() as held:
        for _ in range(_TRIES_MAX):
            if len(ports) == count:
                break
            port = chooser.randrange(_LOWEST, floor)
            probe = _bound(port)
            if probe is not None:
                held.enter_context(probe)
                ports.append(port)
    if len(ports) < count:
        raise OSError(f"found {len(ports)} free ports of {count} in {_TRIES_MAX} tries")
    return ports


def free_port() -> int:
    """One port that nobody listens on at this moment."""
    return free_ports(1)[0]
