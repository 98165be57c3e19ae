"""Lines on stdout and stderr.

stdout holds the answer and nothing else. Messages and progress go to stderr.
"""

import os
import shutil
import sys
from pathlib import Path


def wants_json(asked: bool) -> bool:
    """Return True if the answer is for a program: `--json` was given, or stdout is no terminal."""
    return asked or not sys.stdout.isatty()


def command_name() -> str:
    """Return how a user of this shell runs the command: its name, or its path if that is needed."""
    called = sys.argv[0]
    if Path(called).name != "sessionary" or shutil.which("sessionary") is not None:
        return "sessionary"
    return os.path.relpath(called)


def print_line(text: str) -> None:
    """Write one line to stdout as it is."""
    sys.stdout.write(text + "\n")


def print_message(text: str) -> None:
    """Write one line to stderr; a progress line that is shown there is overwritten."""
    sys.stderr.write(("\r\x1b[K" if sys.stderr.isatty() else "") + text + "\n")
    sys.stderr.flush()
