"""What a child process has printed, and a wait for a line of it."""

import time
from collections.abc import Callable

from sessionary.infra.local.process import Child, tail
from sessionary.schemas.errors import Unavailable

_PATIENCE_S = 60.0
_PAUSE_S = 0.05


def lines_of(child: Child) -> list[str]:
    """Return what a process has printed so far, in whole lines."""
    text = child.log.read_text("utf-8") if child.log.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def wait_for_line(child: Child, is_it: Callable[[str], bool], purpose: str, patience_s: float = _PATIENCE_S) -> str:
    """Return the first line of a process for which `is_it` holds. Blocks for `patience_s` at most.

    Raises `Unavailable` if none comes.
    """
    deadline = time.monotonic() + patience_s
    while True:
        ended = child.exit_code is not None
        for line in lines_of(child):
            if is_it(line):
                return line
        if ended or time.monotonic() > deadline:
            raise Unavailable(f"{purpose} did not come; the log ends with: {tail(child.log, 3)}", 1.0)
        time.sleep(_PAUSE_S)
