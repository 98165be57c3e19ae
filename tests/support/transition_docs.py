"""Redraws what the documents take from the table of transitions: `python -m
tests.support.transition_docs`.

ARCHITECTURE.md     the state diagram, between its marks
docs/transitions.md the tables of all transitions, of sessions and of runs
"""

import sys
from pathlib import Path

from tests.support.marked_text import replace_marked
from tests.support.transition_diagram import run_table, state_diagram, transition_table

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
TABLE = ROOT / "docs" / "transitions.md"
_HEAD = """# Transitions of a session

Every transition of the session machine, from `TRANSITIONS` in
`stream_processors/core/session/transitions.py`. `make docs` writes this page. Events that are
accepted without a transition are in `ACCEPTED`, in the same module; any other event is refused.

"""


_RUNS = """
## Transitions of a run

By rules 2, from `RUN_TRANSITIONS` in `stream_processors/core/run/transitions.py`. `plan_recorded`
(only if there is no plan), `plan_replaced` (only if there is one), and any other work or completion
that names an open run, leave it in its state. Any other event that names a run is refused.

"""


def with_diagram(text: str) -> str:
    """Return `text` with today's diagram between the marks.

    Raises ValueError unless each mark is there once.
    """
    return replace_marked(text, "state diagram", state_diagram())


def transitions_page() -> str:
    """Return the page of all transitions."""
    return f"{_HEAD}{transition_table()}\n{_RUNS}{run_table()}\n"


def main() -> int:
    """Bring both files up to date. Returns the exit code."""
    try:
        ARCHITECTURE.write_text(with_diagram(ARCHITECTURE.read_text("utf-8")), "utf-8")
        TABLE.write_text(transitions_page(), "utf-8")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
