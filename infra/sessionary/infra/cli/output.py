"""Lines on stdout and stderr.

stdout has only the answer. Messages and progress go to stderr. Texts of agents and users drive no
terminal: what they have of control characters is shown as escapes.
"""

import os
import re
import shutil
import sys
import time
import unicodedata
from pathlib import Path
from typing import Final

# Control characters, directions and other characters without a sign, halves of pairs, and the
# separators of lines and paragraphs. Joiners are parts of words and of pictures.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS: Final = "\u200c\u200d"
_NOT_PLAIN: Final = re.compile(r"[^ -~]")
_NOT_PLAIN_IN_LINES: Final = re.compile(r"[^ -~\n\t]")


def visible(text: str) -> str:
    r"""Return a text on one line, with escapes such as `\u001b` for what a terminal would obey.

    The escapes are those of JSON, so that JSON stays the same value.
    """
    return _NOT_PLAIN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if unicodedata.category(char) not in _UNSEEN or char in _JOINERS:
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def _visible_lines(text: str) -> str:
    return _NOT_PLAIN_IN_LINES.sub(_escape, text)


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
    """Write one line to stdout; on a terminal with escapes for what it would obey."""
    sys.stdout.write((_visible_lines(text) if sys.stdout.isatty() else text) + "\n")


def print_message(text: str) -> None:
    """Write one line to stderr; a progress line that is shown there is overwritten."""
    sys.stderr.write(("\r\x1b[K" if sys.stderr.isatty() else "") + _visible_lines(text) + "\n")
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
        line = f"{now - self._began:5.1f} s  {visible(text)}"
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
