"""Draws what the page of limits takes from the code.

docs/limits.md  its tables, between their marks
docs/clocks.svg which event moves which clock
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from docs.build.clock_effects import CLOCKS
from docs.build.clock_picture import LIMITS_OF_CLOCKS, amount_of, clock_picture, default_ms
from docs.build.marked_text import replace_marked
from sessionary.schemas import limits
from sessionary.schemas.rules import ROW_BYTES_MAX
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.quota.limits import HOLDERS_MAX, WAITING_MAX
from sessionary.stream_processors.core.session.clocks import USER_IDLE
from sessionary.stream_processors.core.session.transitions import RECOVERY_ATTEMPTS_MAX

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "limits.md"
PICTURE = ROOT / "docs" / "clocks.svg"
_BOUNDS = (
    ("a name, an id or a code", f"{limits.NAME_CHARACTERS_MAX:,} characters"),
    ("a text for people, as `message`, `reason`, `detail`", f"{limits.TEXT_CHARACTERS_MAX:,} characters"),
    ("the agent's content, as `text`, `content`, `*_json`", f"{limits.CONTENT_CHARACTERS_MAX:,} characters"),
    ("the `content` of `message_appended`", f"{limits.MESSAGE_CHARACTERS_MAX:,} characters"),
    ("a list or a map", f"{limits.ITEMS_MAX:,} items"),
    ("a count, a size, a cost or a duration", f"0 to {limits.NUMBER_MAX:,}"),
    ("a session's content as JSON, and a whole event", f"{VALUE_BYTES_MAX:,} bytes"),
    ("all data that the processor keeps of a session", f"{ROW_BYTES_MAX:,} bytes"),
    ("open runs of a session", f"{limits.RUNS_OPEN_MAX}"),
    ("concurrent runs of a tenant under a quota of runs; its waiting runs", f"{HOLDERS_MAX:,}; {WAITING_MAX:,}"),
    ("live sessions of a tenant under a quota of sessions; its waiting ones", f"{HOLDERS_MAX:,}; {WAITING_MAX:,}"),
    ("steps, reserved calls, artifacts and turns of a run, or of a session itself", f"{limits.CHILDREN_MAX:,}"),
    ("recoveries of a session", f"{RECOVERY_ATTEMPTS_MAX}"),
    ("the time to live of a migration", f"{limits.MIGRATION_TTL_MS_MIN:,} to {limits.MIGRATION_TTL_MS_MAX:,} ms"),
)


def limits_table() -> str:
    """Return the table of a session's limits, without a line end at its end."""
    meanings = _limit_meanings()
    rows = []
    for name, default in limits.DEFAULTS._asdict().items():
        low_high = limits.RANGES.get(name)
        allowed = "any" if low_high is None else " to ".join(amount_of(name, value) for value in low_high)
        rows.append(f"| `{name}` | {amount_of(name, default)} | {allowed} | {_clock_of(name)} | {meanings[name]} |")
    head = "| limit | default | range without override | clock | meaning |\n|---|---|---|---|---|"
    return "\n".join([head, *rows])


def clocks_table() -> str:
    """Return the table of the clocks, without a line end at its end."""
    rows = []
    after = [state for state, _ in CLOCKS].index("Paused")
    for state, clock in (*CLOCKS[:after], ("Active, between turns", USER_IDLE), *CLOCKS[after:]):
        names = " + ".join(f"`{name}`" for name in LIMITS_OF_CLOCKS[clock])
        default = amount_of("limit_ms", default_ms(clock))
        rows.append(f"| {clock.name} | {state} | {names} | {default} | `{clock.reason_code}` |")
    head = "| clock | fires in | limit | by default | reason in the audit trail |\n|---|---|---|---|---|"
    return "\n".join([head, *rows])


def bounds_table() -> str:
    """Return the table of the bounds of values, without a line end at its end."""
    return "\n".join(["| value | at most |\n|---|---|", *(f"| {what} | {most} |" for what, most in _BOUNDS)])


_TABLES: Mapping[str, Callable[[], str]] = {"limits": limits_table, "clocks": clocks_table, "bounds": bounds_table}


def with_tables(text: str) -> str:
    """Return the page with today's tables. Raises ValueError unless each mark is there once."""
    for name, draw in _TABLES.items():
        text = replace_marked(text, name, f"\n{draw()}\n")
    return text


def _limit_meanings() -> dict[str, str]:
    """Return what `Limits` says of each of its fields, without the ranges."""
    text = re.sub(r"\n {8,}", " ", inspect.getdoc(Limits) or "")
    text = re.sub(r"; recommended [\d,]+ to [\d,]+", "", text)
    return dict(re.findall(r"^ {4}(\w+): (.*)$", text, re.M))


def _clock_of(name: str) -> str:
    if name == "archive_delay_ms":  # its clock first measures another limit
        return "archive"
    return next((clock.name for clock, names in LIMITS_OF_CLOCKS.items() if name in names), "-")


def write() -> Iterable[Path]:
    """Bring both files up to date. Returns their paths. Raises ValueError if a mark is missing."""
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
    PICTURE.write_text(clock_picture(), "utf-8")
    return PAGE, PICTURE
