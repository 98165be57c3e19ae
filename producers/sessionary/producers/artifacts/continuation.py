"""The prompt with which a model continues a long text. Pure."""

from collections.abc import Sequence

LINES_MAX = 30
_CHARACTERS_MAX = 4_000  # of the text that is quoted: lines may be long


def continuation_prompt(written: str, outline: Sequence[str] = (), *, lines_max: int = LINES_MAX) -> str:
    """Return a prompt that lets a model go on after `written`; its size does not depend on it.

    Args:
        written: The text so far, which ends anywhere.
        outline: What is still to be written, in order.
        lines_max: How many of the last lines are quoted, from 1.
    """
    lines = written.rstrip().splitlines()[-lines_max:]
    tail = "\n".join(lines)[-_CHARACTERS_MAX:]
    parts = []
    if tail:
        parts += ["These are the last lines of a text that you are writing:", tail]
        parts.append("Continue with the next paragraph. Do not repeat or rewrite what is there.")
    else:
        parts.append("Begin the text.")
    if outline:
        parts += ["These parts are still missing:", "\n".join(f"- {part}" for part in outline)]
    return "\n\n".join(parts)
