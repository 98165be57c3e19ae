"""Draws a dashboard as one SVG, which is readable on light and on dark pages."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from docs.build.dashboards.panel import Board, Panel

_COLUMNS, _WIDTH, _HEIGHT, _GAP = 3, 320, 214, 12
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 32, 54  # of the plot in its panel
_HEAD, _ROW_HEAD = 34, 28
_LEGENDS_MAX, _LEGEND_COLUMNS, _NAME_MAX = 6, 2, 27
_COLORS: Final = ("#3274d9", "#d9822b", "#3a9e4f", "#b65fcf", "#c9a227", "#2aa5a0")
_STYLE: Final = """
    .page { fill: #ffffff } .panel { fill: #f6f8fa; stroke: #d0d7de } text { fill: #1f2328 }
    .note { fill: #59636e; font-size: 9px } .grid { stroke: #d8dee4 } .limit { stroke: #d1242f; stroke-dasharray: 4 3 }
    .line { fill: none; stroke-width: 1.4; stroke-linejoin: round }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 } .panel { fill: #161b22; stroke: #30363d } text { fill: #e6edf3 }
      .note { fill: #9198a1 } .grid { stroke: #30363d } .limit { stroke: #ff7b72 }
    }
"""
_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "s": (" s", 1),
    "bytes": ("B", 1),
    "Bps": ("B/s", 1),
    "percentunit": (" %", 100),
    "cps": ("/s", 1),
    "short": ("", 1),
    "bool_yes_no": ("", 1),
}


class Line(NamedTuple):
    """One line of a panel: its name, and its points as seconds since the start and value."""

    name: str
    points: tuple[tuple[float, float], ...]


def format_value(value: float, unit: str) -> str:
    """Return a value with its unit, in three digits."""
    suffix, scale = _UNITS[unit]
    number = value * scale
    if unit == "bool_yes_no":
        return {0.0: "no", 1.0: "yes"}.get(number, "")
    if unit == "s" and 0 < abs(number) < 1:
        return f"{number * 1_000:.3g} ms"
    if abs(number) < 1_000:
        return f"{number:.3g}{' ' * (suffix[:1] == 'B')}{suffix}"
    power = min(int(math.log10(abs(number)) // 3), 4)
    return f"{number / 1_000**power:.3g} {'kMGT'[power - 1]}{suffix.strip()}"


def board_svg(board: Board, lines: Mapping[str, Sequence[Line]], duration_s: float, note: str) -> str:
    """Return the picture.

    `lines`: those of each panel, by its question. `duration_s`: what the time axis shows.
    """
    parts, top = [], _HEAD
    for row in board.rows:
        parts.append(_text(_GAP, top + 18, row.title, 'font-size="14" font-weight="bold"'))
        top += _ROW_HEAD
        for number, panel in enumerate(row.panels):
            line, column = divmod(number, _COLUMNS)
            left = _GAP + column * (_WIDTH + _GAP)
            parts.append(
                _panel_svg(panel, lines.get(panel.question, ()), duration_s, left, top + line * (_HEIGHT + _GAP))
            )
        top += -(-len(row.panels) // _COLUMNS) * (_HEIGHT + _GAP)
    width = _GAP + _COLUMNS * (_WIDTH + _GAP)
    head = _text(_GAP, 23, f"sessionary: {board.title}", 'font-size="17" font-weight="bold"')
    said = _text(width - _GAP, 23, note, 'class="note" text-anchor="end"')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" '
        'font-family="sans-serif" font-size="11">\n'
        f"  <title>{escape(board.description)}</title>\n  <style>{_STYLE}  </style>\n"
        f'  <rect class="page" width="{width}" height="{top}"/>\n{head}{said}{"".join(parts)}</svg>\n'
    )


def _panel_svg(panel: Panel, lines: Sequence[Line], duration_s: float, left: float, top: float) -> str:
    limit = (
        ""
        if panel.limit is None
        else f"{'above' if panel.is_floor else 'below'} {format_value(panel.limit, panel.unit)}"
    )
    shown = [line for line in lines if line.points]
    parts = [
        f'<rect class="panel" width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>\n',
        _text(8, 16, panel.question, 'font-weight="bold"'),
        _text(_WIDTH - 8, 27, limit, 'class="note" text-anchor="end"') if limit else "",
    ]
    if shown:
        low, high = _bounds(panel, shown)
        parts += [_grid_svg(panel, low, high, duration_s), _lines_svg(shown, low, high, duration_s), _legend_svg(shown)]
    else:
        parts.append(_text(_WIDTH / 2, _HEIGHT / 2, "no data", 'class="note" text-anchor="middle"'))
    return f'<g transform="translate({left} {top})">\n{"".join(parts)}</g>\n'


def _bounds(panel: Panel, lines: Sequence[Line]) -> tuple[float, float]:
    values = [value for line in lines for _, value in line.points]
    low, high = min(0.0, *values), max(0.0, *values)
    if panel.limit is not None and high > panel.limit / 5:
        high = max(high, panel.limit)
    if high == low:
        high = low + 1
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step = next(step * factor for factor in (1, 2, 5, 10) if step * factor * 4 >= high - low)
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _grid_svg(panel: Panel, low: float, high: float, duration_s: float) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        y = _y_of(value, low, high)
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>\n')
        parts.append(_text(_LEFT - 5, y + 3, format_value(value, panel.unit), 'class="note" text-anchor="end"'))
        x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        anchor = ("start", "middle", "end")[int(share * 2)]
        minutes = f"{share * duration_s / 60:.3g} min"
        parts.append(_text(x, _HEIGHT - _BOTTOM + 12, minutes, f'class="note" text-anchor="{anchor}"'))
    if panel.limit is not None and low <= panel.limit <= high:
        parts.append(f'<path class="limit" d="M{_LEFT} {_y_of(panel.limit, low, high)}H{_WIDTH - _RIGHT}"/>\n')
    return "".join(parts)


def _lines_svg(lines: Sequence[Line], low: float, high: float, duration_s: float) -> str:
    parts = []
    for number, line in enumerate(lines):
        steps = [after[0] - before[0] for before, after in zip(line.points, line.points[1:], strict=False)]
        gap_s = 1.5 * min(steps, default=0.0)
        path, former_s = "", -math.inf
        for at_s, value in line.points:
            x = round(_LEFT + at_s / duration_s * (_WIDTH - _LEFT - _RIGHT), 1)
            # A point that stands alone is a short line.
            path += f"{'L' if at_s - former_s <= gap_s else 'M'}{x:g} {_y_of(value, low, high)}" + "h.1" * (not steps)
            former_s = at_s
        parts.append(f'<path class="line" stroke="{_COLORS[number % len(_COLORS)]}" d="{path}"/>\n')
    return "".join(parts)


def _legend_svg(lines: Sequence[Line]) -> str:
    parts = []
    named = lines[: _LEGENDS_MAX - 1] if len(lines) > _LEGENDS_MAX else lines
    for number, line in enumerate(named):
        row, column = divmod(number, _LEGEND_COLUMNS)
        x, y = 10 + column * (_WIDTH - 16) / _LEGEND_COLUMNS, _HEIGHT - 28 + row * 11
        parts.append(f'<rect x="{x:g}" y="{y - 6:g}" width="8" height="6" fill="{_COLORS[number % len(_COLORS)]}"/>\n')
        name = line.name if len(line.name) <= _NAME_MAX else "…" + line.name[1 - _NAME_MAX :]
        parts.append(_text(x + 12, y, name, 'class="note"'))
    if len(named) < len(lines):
        parts.append(_text(22 + (_WIDTH - 16) / 2, _HEIGHT - 6, f"and {len(lines) - len(named)} more", 'class="note"'))
    return "".join(parts)


def _y_of(value: float, low: float, high: float) -> float:
    return round(_HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 1)


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(text)}</text>\n'
