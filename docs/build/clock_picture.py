"""The picture of which event moves which clock, as SVG."""

from collections.abc import Iterator
from html import escape
from itertools import groupby

from docs.build.clock_effects import CLOCKS, ROWS, ClockEffect, EventRow, effects_of
from sessionary.schemas.limits import DEFAULTS
from sessionary.stream_processors.core.session import clocks
from sessionary.stream_processors.core.session.clocks import SessionClock

_NAMES_WIDTH, _COLUMN, _HEAD, _ROW, _MARGIN = 270, 108, 92, 30, 12
_WIDTH = _NAMES_WIDTH + _COLUMN * len(CLOCKS) + _MARGIN
_LEGEND = 62
_HEIGHT = _HEAD + _ROW * len(ROWS) + _LEGEND
_UNITS = ((3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))
# The limits whose sum a clock measures.
LIMITS_OF_CLOCKS = {
    clocks.INITIALISATION: ("init_ms",),
    clocks.INACTIVITY: ("model_ms", "tool_ms", "network_ms"),
    clocks.IDLE: ("idle_ms",),
    clocks.MAX_DURATION: ("max_duration_ms",),
    clocks.USER_IDLE: ("user_idle_ms",),
    clocks.GRACE: ("grace_ms",),
    clocks.HOLD: ("hold_ms",),
    clocks.RECOVERY: ("recovery_ms",),
    clocks.ARCHIVE: ("release_limit_ms",),
}
_NOTES = {
    "work": "activity, progress, tool calls, …",
    "completions": "ends of tool calls, usage",
    "snapshots": "and checkpoints",
    "session_timed_out": "by the processor",
    "session_archived": "by the processor",
}
_STYLE = """\
  <style>
    .names { fill: #222 }
    .note { fill: #666; font-size: 11px }
    .state { fill: #eef3fa; stroke: #3b5b8c }
    .line { stroke: #ddd }
    .starts { fill: #3a7d47 }
    .restarts { fill: #1f6fb2 }
    .pauses { fill: #a9761d }
    .ends { fill: #888 }
    .leaves { fill: none; stroke: #bbb; stroke-width: 1.5 }
    .sign { fill: #fff }
    .turn { fill: none; stroke: #fff; stroke-width: 1.8 }
  </style>
"""
# The class and the meaning of each effect, in the order of the legend.
_KINDS = {
    ClockEffect.STARTS: ("starts", "starts the clock"),
    ClockEffect.RESTARTS: ("restarts", "restarts the clock"),
    ClockEffect.PAUSES: ("pauses", "pauses the clock"),
    ClockEffect.CONTINUES: ("starts", "resumes the clock"),
    ClockEffect.ENDS: ("ends", "ends the clock"),
    ClockEffect.LEAVES: ("leaves", "accepted, moves no clock"),
}
# Their signs, around 0 0: shapes instead of letters, as not every font has these.
_SIGNS = {
    ClockEffect.STARTS: ('<path class="sign" d="M-3 -5 L6 0 L-3 5 z"/>',),
    ClockEffect.RESTARTS: (
        '<path class="turn" d="M3.2 -3.8 A5 5 0 1 0 5 0.5"/>',
        '<path class="sign" d="M1 -7.5 L7 -4.5 L1.5 -1 z"/>',
    ),
    ClockEffect.PAUSES: ('<path class="sign" d="M-4.5 -5 h3 v10 h-3 z M1.5 -5 h3 v10 h-3 z"/>',),
    ClockEffect.CONTINUES: ('<path class="sign" d="M-5.5 -5 h2.5 v10 h-2.5 z M-1 -5 L6.5 0 L-1 5 z"/>',),
    ClockEffect.ENDS: ('<path class="sign" d="M-4 -4 h8 v8 h-8 z"/>',),
    ClockEffect.LEAVES: (),
}


def amount_of(name: str, value: int) -> str:
    """Return a limit as people read it: 900000 of a field `*_ms` is `15 min`."""
    if not name.endswith("_ms"):
        return f"{value:,} bytes"
    size, unit = next((size, unit) for size, unit in _UNITS if value % size == 0)
    return f"{value // size:,} {unit}"


def default_ms(clock: SessionClock) -> int:
    """Return a clock's limit for a session that names none, in ms."""
    limits_ms: list[int] = [getattr(DEFAULTS, name) for name in LIMITS_OF_CLOCKS[clock]]
    return sum(limits_ms)


def clock_picture() -> str:
    """Return the picture, with a line end."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        "  <title>Which event moves which clock of a session</title>",
        _STYLE.rstrip(),
        f'  <rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        *_heads(),
        *(part for number, row in enumerate(ROWS) for part in _row(number, row)),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _left_of(number: int) -> int:
    return _NAMES_WIDTH + number * _COLUMN


def _text(x: float, y: float, text: str, of_class: str = "names", anchor: str = "middle") -> str:
    return f'  <text class="{of_class}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _heads() -> Iterator[str]:
    begin = 0
    for state, columns in groupby(CLOCKS, key=lambda column: column.state):
        count = len(list(columns))
        left, width = _left_of(begin) + 2, count * _COLUMN - 4
        yield f'  <rect class="state" x="{left}" y="8" width="{width}" height="26" rx="6"/>'
        yield _text(left + width / 2, 26, state)
        begin += count
    yield _text(_NAMES_WIDTH - 12, 26, "fires in state", "note", "end")
    yield _text(_NAMES_WIDTH - 12, 54, "clock", "note", "end")
    yield _text(_NAMES_WIDTH - 12, 74, "its limit by default", "note", "end")
    for number, column in enumerate(CLOCKS):
        middle = _left_of(number) + _COLUMN / 2
        yield _text(middle, 54, column.clock.name)
        yield _text(middle, 74, amount_of("limit_ms", default_ms(column.clock)), "note")


def _row(number: int, row: EventRow) -> Iterator[str]:
    top = _HEAD + number * _ROW
    yield f'  <line class="line" x1="{_MARGIN}" y1="{top}" x2="{_WIDTH - _MARGIN}" y2="{top}"/>'
    yield _text(_MARGIN, top + 20, row.name, anchor="start")
    if row.name in _NOTES:
        yield _text(_NAMES_WIDTH - 12, top + 20, _NOTES[row.name], "note", "end")
    for column, effect in enumerate(effects_of(row).values()):
        if effect is not ClockEffect.REJECTED:
            yield _sign(_left_of(column) + _COLUMN / 2, top + _ROW / 2, effect)


def _sign(x: float, y: float, effect: ClockEffect) -> str:
    radius = 5 if effect is ClockEffect.LEAVES else 10
    shapes = (f'<circle class="{_KINDS[effect][0]}" r="{radius}"/>', *_SIGNS[effect])
    return f'  <g transform="translate({x:g} {y:g})">{"".join(shapes)}</g>'


def _legend() -> Iterator[str]:
    top = _HEIGHT - _LEGEND
    yield f'  <line class="line" x1="{_MARGIN}" y1="{top}" x2="{_WIDTH - _MARGIN}" y2="{top}"/>'
    x = _MARGIN + 10.0
    for effect, (_, meaning) in _KINDS.items():
        yield _sign(x, top + 22, effect)
        yield _text(x + 16, top + 26, meaning, anchor="start")
        x += 46 + 7 * len(meaning)
    yield _text(
        _MARGIN,
        top + 52,
        "Empty: the event is rejected in that state. A rejected event moves no clock.",
        "note",
        "start",
    )
