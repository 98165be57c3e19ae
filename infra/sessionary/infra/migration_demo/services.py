"""The processes of the example of a moving session: its three services."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.examples import example_folder
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import ENV_PREFIX

EXAMPLE: Final = example_folder(Path(__file__), "moving_session")


class Services:
    """The example's processes, with their logs and spools in `folder`."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`environ`: the variables of their clients."""
        self._folder = folder
        self._environ = {**os.environ, **environ, "PYTHONUNBUFFERED": "1"}

    @contextmanager
    def running(self, service: str, *arguments: str) -> Iterator[Child]:
        """Run a service inside the context; what is left of it at the end is killed.

        Raises `StartFailed` if the example is not there.
        """
        program = EXAMPLE / "services.py"
        if not program.is_file():
            raise StartFailed(f"the example of a moving session is not there: {program}")
        argv = [sys.executable, str(program), service, *arguments]
        own = {ENV_PREFIX + "SPOOL_DIR": str(self._folder / f"spool-{service}")}
        child = Child(argv, self._folder / f"{service}.log", {**self._environ, **own})
        try:
            yield child
        finally:
            child.kill()


__all__ = ["EXAMPLE", "Services"]
