"""The progress line of a long command, on stderr."""

import shutil
import sys
import time

from sessionary.infra.cli.output import print_message

_REPEAT_S = 5.0


class Progress:
    """One line on stderr that tells how far a long command is.

    On a terminal the line is rewritten. Elsewhere it is printed if its first word changed, or if
    it changed and the last line is 5 s old.
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
