"""Which build of the rules and the codec this process runs: the compiled one, or the Python."""

from importlib.machinery import EXTENSION_SUFFIXES
from typing import Literal

from sessionary.schemas.codec.compiled_functions import generated_functions
from sessionary.stream_processors.core import overlay

CoreBuild = Literal["native", "python"]


def core_build() -> CoreBuild:
    """Return the build that was imported. Both do the same; the compiled one is faster.

    It is native if the rules, and the readers and writers of records, are.
    """
    files = overlay.__file__, f"{getattr(generated_functions(), '__file__', '')}"
    return "native" if all(file.endswith(tuple(EXTENSION_SUFFIXES)) for file in files) else "python"
