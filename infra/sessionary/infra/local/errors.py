"""Errors of the local stack.

LocalStackError
├── PortTaken           a requested port is in use by another process
├── DiskFull            a stack's disk has too little room
├── JarsUnavailable     the broker's jars could not be resolved
├── StartFailed         a process ended, or did not answer in time
├── BrokerCountDiffers  a folder was made for another number of brokers
├── DataFolderLocked    another process holds the ClickHouse folder
├── InvalidPartOrder    the supervisor's parts wait for unknown parts, or for each other
└── EngineError         a statement failed; carries ClickHouse's code
    └── StatementRefused    the local engine does not allow the statement
"""

from __future__ import annotations

from pathlib import Path


class LocalStackError(Exception):
    """Base of this package's errors."""


class PortTaken(LocalStackError):
    """A requested port is in use by another process."""

    def __init__(self, port: int, purpose: str) -> None:
        super().__init__(f"port {port} on 127.0.0.1 is in use by another process (wanted for {purpose})")
        self.port = port


class DiskFull(LocalStackError):
    """The disk of a stack's folder has too little room to start on."""


class JarsUnavailable(LocalStackError):
    """The broker's jars are not cached and cannot be downloaded."""


class StartFailed(LocalStackError):
    """A process ended before it was ready, or was not ready in time.

    The text ends with the last lines of its log.
    """


class BrokerCountDiffers(LocalStackError):
    """A folder was made for another number of brokers than is wanted."""

    def __init__(self, folder: Path, found: int, wanted: int) -> None:
        super().__init__(
            f"the folder {folder} was made for {found} broker{'s'[: found - 1]}, not for {wanted}, and replicas do not "
            "move by themselves: start the number that it was made for, or use another folder"
        )


class DataFolderLocked(LocalStackError):
    """Another process has the ClickHouse folder open.

    `pid` is that process as the folder's status file names it; None if it names no living process.
    """

    def __init__(self, folder: Path, pid: int | None) -> None:
        holder = f"by process {pid}" if pid is not None else "by another process"
        super().__init__(
            f"the ClickHouse folder {folder} is held {holder}: stop that process first, or use another folder"
        )
        self.folder = folder
        self.pid = pid


class InvalidPartOrder(LocalStackError):
    """The parts given to a supervisor wait for unknown parts, or for each other."""


class EngineError(LocalStackError):
    """A statement failed. `code` and text are ClickHouse's own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class StatementRefused(EngineError):
    """The statement was not run: it could damage the folder, or cannot be served here."""

    def __init__(self, why: str) -> None:
        super().__init__(344, f"Code: 344. DB::Exception: {why}. (SUPPORT_IS_DISABLED)")
