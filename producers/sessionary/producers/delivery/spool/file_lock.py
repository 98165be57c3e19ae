"""A lock file that its process holds for life: free means that the process is dead.

A note in the file says to the next holder which cluster its process has reached.

The kernel frees the lock however the process ends. On Linux and macOS it is `flock`; an interpreter
without the module `fcntl` uses `lockf`. On Windows it is a byte that `msvcrt` locks.
"""

import errno
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

_MODE = 0o600
_NOTE_BYTES_MAX = 1_024
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
_LOOK_S, _LOOKS_MAX = 0.02, 50
# Locks of this process. `lockf` knows only processes: it would grant a lock that we hold already.
_held: dict[Path, "FileLock"] = {}

if sys.platform == "win32":
    OPEN_FLAGS = os.O_RDWR | os.O_BINARY | os.O_NOINHERIT
else:
    OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC


class FileLock:
    """A lock that this process holds. Not thread-safe.

    Attributes:
        created_ns: The time of the file, ns since the epoch, which orders the locks.
        note: The note in the file; None if it has none that can be read.
    """

    def __init__(self, path: Path, fd: int) -> None:
        """Take over the open and locked file descriptor `fd` of `path`. Raises `OSError`."""
        self.path = path
        self.file_id = file_id(fd)
        self.created_ns = os.fstat(fd).st_mtime_ns
        os.lseek(fd, 0, os.SEEK_SET)
        self.note = _parse_note(os.read(fd, _NOTE_BYTES_MAX))
        self._fd = fd
        _held[path] = self

    def write_note(self, note: str | None) -> None:
        """Replace the note in the file, not its time. Raises `OSError`."""
        self.note = note  # first: a lock that is lost now gets it when it is created again
        _write_note(self._fd, self.path, note, self.created_ns)

    @property
    def is_released(self) -> bool:
        """True if this process does not hold the lock any more."""
        return self._fd < 0

    @property
    def is_lost(self) -> bool:
        """True if the file was removed, or moved away: another process may lock one of its name."""
        return self.is_released or not is_same_file(self.path, self.file_id)

    def release(self) -> None:
        """Free the lock; its file stays. In a forked child the parent keeps the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        _held.pop(self.path, None)

    def remove(self) -> None:
        """Free the lock and delete its file; one that cannot be deleted is left to the next one."""
        if sys.platform == "win32":  # no file can be deleted that is open
            self.release()
            with suppress(OSError):  # another process looks at it just now, and will delete it
                self.path.unlink()
        else:
            # In this order: a lock that was freed first could be taken and then lose its file.
            with suppress(OSError):
                self.path.unlink()
            self.release()


def read_note(path: Path) -> str | None:
    """Return the note in a lock's file; None if there is none that can be read."""
    if (lock := _held.get(path)) is not None:
        return lock.note  # `lockf` would free a lock of this process whose file is closed
    try:
        return _parse_note(path.read_bytes())
    except OSError:
        return None


def _parse_note(data: bytes) -> str | None:
    note, end, _ = data.decode(errors="replace").partition("\n")
    return note if note and end else None  # without its end it was written in part


def _write_note(fd: int, path: Path, note: str | None, created_ns: int) -> None:
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    if note is not None:
        os.write(fd, f"{note}\n".encode())
    os.utime(fd if os.utime in os.supports_fd else path, ns=(created_ns, created_ns))


FileId = tuple[int, int]
"""Device and inode of a file."""


def file_id(file: Path | int) -> FileId:
    """Return which file a path leads to, or a descriptor has open. Raises `OSError`."""
    found = os.fstat(file) if isinstance(file, int) else file.stat()
    return found.st_dev, found.st_ino


def is_same_file(path: Path, known: FileId) -> bool:
    """Return False if a path leads to no file, or to another one.

    A volume that cannot be read now may have it still: then True.
    """
    try:
        return file_id(path) == known
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def create_locked(path: Path, like: FileLock | None = None) -> FileLock:
    """Create the file `path` such that other processes never see it without its lock.

    It gets the time and the note of `like`, which may be released. Raises `FileExistsError` if it
    exists, `OSError` if it cannot be created or locked.
    """
    if sys.platform == "win32":
        return _create_watched(path, like)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        if not _lock_file(fd):
            raise OSError(errno.EAGAIN, "another process has locked it", str(temporary))
        if like is not None:
            _write_note(fd, temporary, like.note, like.created_ns)
        _publish_file(temporary, path)
        return FileLock(path, fd)
    except OSError:
        os.close(fd)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def try_lock(path: Path) -> FileLock | None:
    """Lock the existing file `path`; None if it is locked or gone. Raises other `OSError`."""
    if path in _held:
        return None
    try:
        fd = os.open(path, OPEN_FLAGS)
    except FileNotFoundError:
        return None
    except PermissionError:
        if sys.platform == "win32":  # it is being deleted
            return None
        raise
    try:
        # Without a link, its holder has deleted it since we opened it.
        if _lock_file(fd) and os.fstat(fd).st_nlink > 0:
            return FileLock(path, fd)
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _publish_file(temporary: Path, path: Path) -> None:
    """Give a file its name. Raises `FileExistsError` if there is one of that name."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.rename(path)


if sys.platform == "win32":

    def _create_watched(path: Path, like: FileLock | None) -> FileLock:
        """Create and lock a file. Others may lock it in between, but only for a moment.

        They cannot delete it, as it is open here.
        """
        fd = os.open(path, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
        for _ in range(_LOOKS_MAX):
            if _lock_file(fd):
                if like is not None:
                    _write_note(fd, path, like.note, like.created_ns)
                return FileLock(path, fd)
            time.sleep(_LOOK_S)
        os.close(fd)
        raise OSError(errno.EAGAIN, "another process has locked it", str(path))

    def _lock_file(fd: int) -> bool:
        import msvcrt

        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:

    def _lock_file(fd: int) -> bool:
        """Return False if another process has locked the file. Raises other `OSError`."""
        try:
            import fcntl
        except ImportError:
            fcntl = None  # type: ignore[assignment]
        try:
            if fcntl is None:
                os.lockf(fd, os.F_TLOCK, 0)
            else:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True


__all__ = ["OPEN_FLAGS", "FileId", "FileLock", "create_locked", "file_id", "is_same_file", "read_note", "try_lock"]
