"""Lines on stdout and stderr.

stdout has only the answer. Messages and progress go to stderr.
"""

import os
import shutil
import sys
import time
from pathlib import Path


def wants_json(asked: bool) -> bool:
    """Return True if the answer is for a program: `--json` was given, or stdout is no terminal."""
    return asked or not sys.stdout.isatty()


def command_name() -> str:
    """Return how a user of this shell runs the command: by name, or by path if needed."""
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


# The progress line of a long command, on stderr.


_REPEAT_S = 5.0


class Progress:
    """One line on stderr that shows the progress of a long command.

    On a terminal the line is rewritten. Elsewhere the line is printed if its first word changed, or
    if its text changed and the last printed line is 5 s old.
    """

    def __init__(self) -> None:
        """Write nothing yet; the clock starts now."""
        self._terminal = sys.stderr.isatty()
        self._last = ""
        self._printed_at = 0.0
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        """Show `text` with the seconds since the start."""
        now = time.monotonic()
        line = f"{now - self._began:5.1f} s  {text}"
        if self._terminal:
            # A line that wraps could not be rewritten.
            width = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\x1b[K{line[: width - 1]}")
            sys.stderr.flush()
        elif text != self._last and (
            now - self._printed_at >= _REPEAT_S or _first_word(text) != _first_word(self._last)
        ):
            print_message(line)
        else:
            return
        self._last, self._printed_at = text, now

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._terminal and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _first_word(text: str) -> str:
    return text.partition(" ")[0]
