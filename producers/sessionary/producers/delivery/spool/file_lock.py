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
    """A lock that this process holds. Not thread-safe."""

    def __init__(self, path: Path, fd: int) -> None:
        """Take over the open and locked file descriptor `fd` of `path`."""
        self.path = path
        self._fd = fd
        _held[path] = self

    def write_note(self, note: str) -> None:
        """Replace the note in the file, not its time, which orders the locks. Raises `OSError`."""
        created_ns = os.fstat(self._fd).st_mtime_ns
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        os.write(self._fd, f"{note}\n".encode())
        os.utime(self._fd if os.utime in os.supports_fd else self.path, ns=(created_ns, created_ns))

    def read_text(self) -> str:
        """Return the content of the file. Raises `OSError`."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        return os.read(self._fd, _NOTE_BYTES_MAX).decode()

    @property
    def is_lost(self) -> bool:
        """True if the file was removed, or moved away: another process may lock one of its name."""
        if self._fd < 0:
            return True
        try:
            return os.fstat(self._fd).st_nlink == 0 or not has_file(self.path)
        except OSError:
            return True

    def release(self) -> None:
        """Free the lock; its file stays. In a forked child the parent keeps the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        _held.pop(self.path, None)

    def remove(self) -> None:
        """Free the lock and delete its file."""
        if sys.platform == "win32":  # no file can be deleted that is open
            self.release()
            with suppress(OSError):  # another process looks at it just now, and will delete it
                self.path.unlink()
        else:
            # In this order: a lock that was freed first could be taken and then lose its file.
            self.path.unlink(missing_ok=True)
            self.release()


def read_note(path: Path) -> str | None:
    """Return the note in a lock's file; None if there is none that can be read."""
    try:
        lock = _held.get(path)  # `lockf` would free a lock of this process whose file is closed
        note, end, _ = (path.read_text() if lock is None else lock.read_text()).partition("\n")
    except (OSError, ValueError):
        return None
    return note if note and end else None  # without its end it was written in part


def has_file(path: Path) -> bool:
    """Return whether a file can be found; False for one in a folder that is not accessible too."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def create_locked(path: Path) -> FileLock:
    """Create the file `path` such that other processes never see it without its lock.

    Raises `FileExistsError` if it exists, `OSError` if it cannot be created or locked.
    """
    if sys.platform == "win32":
        return _create_watched(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        if not _lock_file(fd):
            raise OSError(errno.EAGAIN, "another process has locked it", str(temporary))
        _publish_file(temporary, path)
    except OSError:
        os.close(fd)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    return FileLock(path, fd)


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
        locked = _lock_file(fd) and os.fstat(fd).st_nlink > 0
    except OSError:
        os.close(fd)
        raise
    if not locked:
        os.close(fd)
        return None
    return FileLock(path, fd)


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

    def _create_watched(path: Path) -> FileLock:
        """Create and lock a file. Others may lock it in between, but only for a moment.

        They cannot delete it, as it is open here.
        """
        fd = os.open(path, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
        for _ in range(_LOOKS_MAX):
            if _lock_file(fd):
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


__all__ = ["OPEN_FLAGS", "FileLock", "create_locked", "has_file", "read_note", "try_lock"]
