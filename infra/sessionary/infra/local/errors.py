"""Errors of the local stack.

LocalStackError
├── PortTaken           a port that was asked for belongs to somebody else
├── JarsUnavailable     the broker's jars could not be resolved
├── StartFailed         a process ended, or did not answer in time
├── DataFolderLocked    another process holds the ClickHouse folder
├── BadParts            the supervisor's parts name unknown parts, or wait for each other in a ring
└── EngineError         a statement failed; carries ClickHouse's code
    └── Refused         the statement is not allowed on the local engine
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "BadParts",
    "DataFolderLocked",
    "EngineError",
    "JarsUnavailable",
    "LocalStackError",
    "PortTaken",
    "Refused",
    "StartFailed",
]


class LocalStackError(Exception):
    """The root of this package's errors."""


class PortTaken(LocalStackError):
    """A wanted port is in use by another process."""

    def __init__(self, port: int, purpose: str) -> None:
        super().__init__(f"port {port} on 127.0.0.1 (wanted for {purpose}) is in use by another process")
        self.port = port


class JarsUnavailable(LocalStackError):
    """The broker's jars are neither cached nor to be had."""


class StartFailed(LocalStackError):
    """A process ended before it was ready, or was not ready in time; the text ends with the last lines of its log."""


class DataFolderLocked(LocalStackError):
    """The ClickHouse folder is held by another process.

    `pid` is the holder as the folder's status file names it, None if it names no living process.
    """

    def __init__(self, folder: Path, pid: int | None) -> None:
        holder = f"by process {pid}" if pid is not None else "by another process"
        super().__init__(f"the ClickHouse folder {folder} is held {holder}: one process at a time may open it")
        self.folder = folder
        self.pid = pid


class BadParts(LocalStackError):
    """The parts given to a supervisor do not form an order."""


class EngineError(LocalStackError):
    """A statement failed. `code` is ClickHouse's error code; the text is ClickHouse's own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Refused(EngineError):
    """The statement was not run, because it could damage the folder or because the local engine cannot serve it."""

    def __init__(self, why: str) -> None:
        super().__init__(344, f"Code: 344. DB::Exception: {why}. (SUPPORT_IS_DISABLED)")
