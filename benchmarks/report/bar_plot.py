"""A plot of horizontal bars, as SVG: groups of bars, each group with a separate scale.

A bar ends at the median; the thin line shows the smallest and the largest run. A bar that is more
than eight times as long as the first one is cut, which a gap shows: the others stay readable.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.results import format_figure

_LABELS, _BARS, _VALUES, _MARGIN = 210, 400, 130, 12
_WIDTH = _LABELS + _BARS + _VALUES
_HEAD, _GROUP_HEAD, _ROW, _BAR = 40, 30, 26, 16
_TIMES_MAX = 8.0
_STYLE = """\
  <style>
    text { fill: #222 }
    .title { font-size: 15px; font-weight: bold }
    .note { fill: #666; font-size: 12px }
    .ours { fill: #1f6fb2 }
    .other { fill: #b9c3cf }
    .gap { fill: #fff }
    .span { stroke: #444; stroke-width: 1.2 }
  </style>"""


class Bar(NamedTuple):
    """One bar: the median, the smallest and the largest run."""

    label: str
    median: float
    low: float
    high: float
    is_ours: bool = False


class BarGroup(NamedTuple):
    """Bars of one measure and unit."""

    title: str
    unit: str
    bars: Sequence[Bar]


def bar_plot(title: str, groups: Sequence[BarGroup]) -> str:
    """Return the plot, with a line end."""
    height = _HEAD + sum(_GROUP_HEAD + _ROW * len(group.bars) for group in groups) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        'font-size="13">',
        f"  <title>{escape(title)}</title>",
        _STYLE,
        f'  <rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        _text(_MARGIN, 25, title, "title"),
    ]
    top = _HEAD
    for group in groups:
        parts += _group_parts(group, top)
        top += _GROUP_HEAD + _ROW * len(group.bars)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _group_parts(group: BarGroup, top: int) -> Iterator[str]:
    bound = _TIMES_MAX * group.bars[0].median
    largest = max(bar.high for bar in group.bars if bar.median <= bound)
    for number, bar in enumerate(group.bars):
        middle = top + _GROUP_HEAD + _ROW * number + _ROW / 2
        yield _text(_LABELS - 8, middle + 5, bar.label, anchor="end")
        yield from _bar_parts(bar, middle, _BARS / largest)
    yield _text(_LABELS, top + 20, f"{group.title}, {group.unit}", "note")


def _bar_parts(bar: Bar, middle: float, scale: float) -> Iterator[str]:
    kind = "ours" if bar.is_ours else "other"
    is_cut = bar.median * scale > _BARS
    low, median, high = (_LABELS + min(_BARS, value * scale) for value in (bar.low, bar.median, bar.high))
    top = middle - _BAR / 2
    yield f'  <rect class="{kind}" x="{_LABELS}" y="{top:g}" width="{median - _LABELS:.1f}" height="{_BAR}"/>'
    if is_cut:
        left = _LABELS + _BARS - 40
        yield f'  <path class="gap" d="M{left} {top + _BAR:g} l10 -{_BAR} h8 l-10 {_BAR} z"/>'
    else:
        yield f'  <line class="span" x1="{low:.1f}" y1="{middle:g}" x2="{high:.1f}" y2="{middle:g}"/>'
    yield _text(round(high, 1) + 8, middle + 5, format_figure(bar.median))


def _text(x: float, y: float, text: str, of_class: str = "", anchor: str = "start") -> str:
    kind = f'class="{of_class}" ' if of_class else ""
    return f'  <text {kind}x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
