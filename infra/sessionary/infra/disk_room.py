"""The room on a disk, and the need of a stack or a worker."""

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
        """Whether the room is sufficient to start a stack."""
        return self.free >= ROOM_BYTES_MIN

    def __str__(self) -> str:
        return f"{self.free // _MIB:,} MiB of {self.total // _MIB:,} MiB are free on the disk of {self.folder}"


def measure_room(folder: Path) -> DiskRoom:
    """Return the room on a folder's disk; its parent's if the folder does not exist yet.

    Raises `OSError`.
    """
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    return DiskRoom(folder, usage.free, usage.total)
