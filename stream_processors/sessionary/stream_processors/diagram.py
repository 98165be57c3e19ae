"""The state diagram of a session, drawn from the table in `table.py` (Mermaid).

python -m sessionary.stream_processors.diagram                    print it
python -m sessionary.stream_processors.diagram ARCHITECTURE.md    replace it between its marks in a file
"""

import sys
from pathlib import Path

from sessionary.stream_processors.core.session.transitions import TRANSITIONS, Transition

BEGIN = "<!-- state diagram: begin -->"
END = "<!-- state diagram: end -->"


def state_diagram() -> str:
    """Return the diagram as a fenced Mermaid block, without a line end."""
    arrows = [_arrow(transition) for transition in TRANSITIONS]
    last = [f"    {state} --> [*]" for state in _final_states()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *arrows, *last, "```"])


def _arrow(transition: Transition) -> str:
    how = {
        "client": ", ".join(transition.reasons),
        "processor": "by a clock",
        "either": ", ".join((*transition.reasons, "or by a clock")),
    }[transition.by]
    label = f"{transition.id} {transition.event_type}" + (f" ({how})" if how else "")
    return f"    {transition.source or '[*]'} --> {transition.target}: {label}"


def _final_states() -> list[str]:
    sources = {transition.source for transition in TRANSITIONS}
    return sorted({transition.target for transition in TRANSITIONS} - sources)


def with_diagram(text: str) -> str:
    """Return `text` with today's diagram between the marks. Raises ValueError where they are not there once each."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{BEGIN} and {END} must stand once each, in this order")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{state_diagram()}\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> int:
    """Print the diagram, or bring a file's up to date. Returns the exit code."""
    if not arguments:
        sys.stdout.write(state_diagram() + "\n")
        return 0
    path = Path(arguments[0])
    try:
        path.write_text(with_diagram(path.read_text("utf-8")), "utf-8")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 1
    return 0


__all__ = ["BEGIN", "END", "main", "state_diagram", "with_diagram"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
