"""Memory for processes that handle blocks of many megabytes, one after another."""

import ctypes
import sys
from typing import Final

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MMAP_BYTES: Final = 32 << 20  # the most that glibc takes
_KEPT_BYTES: Final = 1 << 30


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next block; nothing where the C library is another.

    By default each large block is mapped anew and given back, and the kernel clears every page of it again: on a
    virtual machine half of the time of an insert. The process stays as large as it ever was.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # A thread's own arena is unmapped whenever it is empty: all threads share the first one.
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


__all__ = ["keep_freed_memory"]
