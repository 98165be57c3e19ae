"""Free loopback ports.

Ports are chosen below the range that the kernel uses for outgoing connections. A server that was
killed can therefore bind its port again; a port of that range may have become the local end of a
connection in the meantime.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

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


def _bound_socket(port: int) -> socket.socket | None:
    """Return a socket that listens on the port, None if that fails.

    SO_REUSEADDR is set, as servers do: a port in TIME_WAIT counts as free.
    """
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        # Two sockets with SO_REUSEADDR can both bind, but only one can listen.
        probe.listen(1)
    except (OSError, OverflowError):  # the latter: above 65,535
        probe.close()
        return None
    return probe


def is_free(port: int) -> bool:
    """Return True if a server could listen on this loopback port now."""
    probe = _bound_socket(port)
    if probe is None:
        return False
    probe.close()
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` distinct loopback ports that no process listens on at this moment.

    The ports are not reserved: use them soon. Raises `OSError` if there are too few.
    """
    chooser = random.SystemRandom()
    floor = _ephemeral_floor()
    ports: list[int] = []
    with ExitStack() as held:
        for _ in range(_TRIES_MAX):
            if len(ports) == count:
                break
            port = chooser.randrange(_LOWEST, floor)
            probe = _bound_socket(port)
            if probe is not None:
                held.enter_context(probe)
                ports.append(port)
    if len(ports) < count:
        raise OSError(f"found {len(ports)} free ports of {count} in {_TRIES_MAX} tries")
    return ports


def free_port() -> int:
    """Return one loopback port that no process listens on at this moment. Raises `OSError`."""
    return free_ports(1)[0]
