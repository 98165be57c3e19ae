"""Which build of the rules this process runs: the compiled one, or the Python."""

from importlib.machinery import EXTENSION_SUFFIXES
from typing import Literal

from sessionary.stream_processors.core import overlay

CoreBuild = Literal["native", "python"]


def core_build() -> CoreBuild:
    """Return the build that was imported. Both do the same; the compiled one is faster."""
    return "native" if overlay.__file__.endswith(tuple(EXTENSION_SUFFIXES)) else "python"


__all__ = ["CoreBuild", "core_build"]
