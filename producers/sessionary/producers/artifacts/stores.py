"""Stores of artifacts' bodies: a local folder, or any URL that fsspec knows.

A name has parts that are joined with `/`. A readable body is complete: a writer that dies leaves
none under the name.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from sessionary.producers.errors import ArtifactMissing, Unavailable
from sessionary.schemas.errors import SettingsError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
_RETRY_AFTER_S = 1.0


class ArtifactStore(Protocol):
    """Bodies by name. Thread-safe."""

    def uri(self, name: str) -> str:
        """Return the location of a body, for people and other programs."""
        ...

    def write(self, name: str, body: bytes) -> None:
        """Write a body in one piece; it replaces another one. Raises `Unavailable`."""
        ...

    def read(self, name: str) -> bytes:
        """Return a body. Raises `ArtifactMissing`, `Unavailable`."""
        ...

    def has(self, name: str) -> bool:
        """Return whether there is a body of this name. Raises `Unavailable`."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, without it; none if there is no such folder.

        Raises `Unavailable`.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a body, if it is there. Raises `Unavailable`."""
        ...


class FolderStore:
    """Bodies as files of a local folder, which is made if it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def uri(self, name: str) -> str:
        """Return the file's `file:` URI."""
        return self._path(name).as_uri()

    def write(self, name: str, body: bytes) -> None:
        """Write a file, and make it durable before its final name is set. Raises `Unavailable`."""
        path = self._path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
                try:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                    Path(file.name).replace(path)
                except BaseException:
                    Path(file.name).unlink()
                    raise
        except OSError as error:
            raise _unavailable(self.uri(name), error) from error

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises `ArtifactMissing`, `Unavailable`."""
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            raise ArtifactMissing(self.uri(name)) from None
        except OSError as error:
            raise _unavailable(self.uri(name), error) from error

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""
        return self._path(name).is_file()

    def names(self, folder: str) -> list[str]:
        """Return the names of the files of a folder; unfinished ones do not count."""
        path = self._path(folder)
        try:
            return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unavailable(self.uri(folder), error) from error

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises `Unavailable`."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(self.uri(name), error) from error

    def _path(self, name: str) -> Path:
        return self._folder.joinpath(*PurePosixPath(name).parts)


class FsspecStore:
    """Bodies at a URL that fsspec knows, such as `s3://bucket/artifacts`; needs `artifacts` extra.

    The options of the file system (credentials, endpoint) are fsspec's own, from its configuration.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise SettingsError(
                f"artifacts at {url!r} need fsspec: pip install 'sessionary[artifacts]', or name a local folder"
            ) from None
        try:
            found: tuple[AbstractFileSystem, str] = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SettingsError(f"artifacts cannot be kept at {url!r}: {error}") from error
        self._files, self._root = found

    def uri(self, name: str) -> str:
        """Return the URL of a body."""
        return str(self._files.unstrip_protocol(self._path(name)))

    def write(self, name: str, body: bytes) -> None:
        """Write an object. Raises `Unavailable`."""
        path = self._path(name)

        def put() -> None:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, body)

        self._ask(name, put)

    def read(self, name: str) -> bytes:
        """Return an object. Raises `ArtifactMissing`, `Unavailable`."""
        body: bytes = self._ask(name, lambda: self._files.cat_file(self._path(name)))
        return body

    def has(self, name: str) -> bool:
        """Return whether there is such an object. Raises `Unavailable`."""
        return bool(self._ask(name, lambda: self._files.exists(self._path(name))))

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects of a folder. Raises `Unavailable`."""

        def list_folder() -> list[Any]:
            self._files.invalidate_cache()
            return list(self._files.ls(self._path(folder), detail=False))

        try:
            found = self._ask(folder, list_folder)
        except ArtifactMissing:
            return []
        return sorted(str(path).rpartition("/")[2] for path in found)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there. Raises `Unavailable`."""
        try:
            self._ask(name, lambda: self._files.rm_file(self._path(name)))
        except ArtifactMissing:
            return

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _ask(self, name: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except FileNotFoundError:
            raise ArtifactMissing(self.uri(name)) from None
        except Exception as error:  # each file system of fsspec has its own errors
            raise _unavailable(self.uri(name), error) from error


def open_store(place: str | Path) -> ArtifactStore:
    """Return the store at a folder, at a `file:` URL, or at any other URL that fsspec knows.

    Raises `SettingsError` if fsspec is missing, or does not know the URL.
    """
    if isinstance(place, Path):
        return FolderStore(place)
    parts = urlsplit(place)
    if parts.scheme == "file":
        return FolderStore(Path(unquote(parts.path)))
    return FsspecStore(place) if "://" in place else FolderStore(Path(place))


def _unavailable(uri: str, error: Exception) -> Unavailable:
    return Unavailable(f"{uri}: {error}", _RETRY_AFTER_S)
