"""The room on the disk of a local store."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionary.stream_processors.errors import Halted

# RocksDB and its driver have no error class for them; both quote the operating system.
_TEXTS: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


def free_bytes(folder: Path | None) -> int | None:
    """Return the free bytes on a folder's disk; None for no folder, or if it cannot be told."""
    with contextlib.suppress(OSError):
        return None if folder is None else shutil.disk_usage(folder).free
    return None


@contextmanager
def halt_if_disk_full(folder: Path) -> Iterator[None]:
    """Raise `Halted` (`store_disk_full`) if what is done inside fails for a full disk."""
    try:
        yield
    except Exception as error:
        if not any(text in str(error) for text in _TEXTS):
            raise
        raise Halted(
            "store_disk_full",
            f"no room is left on the disk of the local store {folder}. Make room there, or restart this worker with a "
            "SESSIONARY_STATE_DIR on a larger disk. Nothing is lost: the partition goes on once it can be written",
        ) from error
