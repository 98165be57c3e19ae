"""Free loopback ports.

Ports are chosen below the range that the kernel uses for outgoing connections. A server that was
killed can therefore bind its port again; a port of that range may have become the local end of a
connection in the meantime.

On Linux a chosen port is reserved: the process keeps a socket bound to it, which does not listen. A
server with SO_REUSEADDR may listen on such a port; `free_ports` of any process passes it over. So
the parts of a stack, which start seconds after their ports were chosen, find them free.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections import deque
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 12_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_FLOOR_DEFAULT = 32_768
_TRIES_MAX = 1_000
_RESERVED_MAX = 64  # each is an open file; the oldest is given up for a new one
_reserved: deque[int] = deque()  # file descriptors: a socket object would warn that it is never closed


def _ephemeral_floor() -> int:
    try:
        floor = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_FLOOR_DEFAULT
    return floor if floor > _LOWEST + _TRIES_MAX else _EPHEMERAL_FLOOR_DEFAULT


def is_free(port: int) -> bool:
    """Return True if a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            # As servers do: a port in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            # Two sockets with SO_REUSEADDR can both bind, but only one can listen.
            probe.listen(1)
        except (OSError, OverflowError):  # the latter: above 65,535
            return False
    return True


def _reserve(port: int) -> bool:
    """Reserve a port; return False if a socket is bound to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        try:
            holder.bind((LOOPBACK, port))
        except OSError:
            return False
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # from here on a server may bind
        _reserved.append(holder.detach())
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` distinct loopback ports to which no socket is bound at this moment.

    On Linux this process reserves them until it ends or has chosen 64 others. Elsewhere two bound
    sockets cannot share a port: use them soon. Raises `OSError` if there are too few.
    """
    chooser = random.SystemRandom()
    floor = _ephemeral_floor()
    ports: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(ports) == count:
            break
        port = chooser.randrange(_LOWEST, floor)
        if _reserve(port):
            ports.append(port)
    while len(_reserved) > (_RESERVED_MAX if sys.platform == "linux" else 0):
        os.close(_reserved.popleft())
    if len(ports) < count:
        raise OSError(f"found {len(ports)} free ports of {count} in {_TRIES_MAX} tries")
    return ports


def free_port() -> int:
    """Return one loopback port that no process listens on at this moment. Raises `OSError`."""
    return free_ports(1)[0]
