"""How much room a disk has, and how much a stack or a worker needs."""

import shutil
from pathlib import Path
from typing import Final, NamedTuple

# A broker preallocates indexes of 20 MiB for each partition that is written, and ClickHouse writes
# blocks and merges; a store of RocksDB needs less.
ROOM_BYTES_MIN: Final = 512 << 20
_MIB = 1 << 20


class DiskRoom(NamedTuple):
    """The room on the disk of a folder, in bytes."""

    folder: Path
    free: int
    total: int

    @property
    def is_enough(self) -> bool:
        """Whether it is as much as a stack needs to start."""
        return self.free >= ROOM_BYTES_MIN

    def __str__(self) -> str:
        return f"{self.free // _MIB:,} MiB of {self.total // _MIB:,} MiB are free on the disk of {self.folder}"


def measure_room(folder: Path) -> DiskRoom:
    """Return the room on a folder's disk; of a folder that does not exist yet, its parent's.

    Raises `OSError`.
    """
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    return DiskRoom(folder, usage.free, usage.total)
