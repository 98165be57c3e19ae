"""A story as one self-contained HTML file; pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

from sessionary.infra.story.event_text import clock_text, format_duration, format_usd
from sessionary.infra.story.story import Moment, add_totals, describe_moment

# Moments as a picture: lanes, bars, beats, deadlines and a cost curve, in SVG; pure.


_WIDTH, _LEFT, _RIGHT = 1200, 150, 20
_STATE_Y, _STATE_HEIGHT = 30, 22
_LANE_HEIGHT, _BAR_HEIGHT, _BAR_WIDTH_MIN = 46, 14, 3
_COST_HEIGHT = 70
_AXIS_HEIGHT = 34
_TICKS_MAX = 10
_STEPS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800)


class Chart(NamedTuple):
    """The content of a picture.

    Attributes:
        moments: In the order of the log; at least one.
        beats: Times of heartbeats by lane; µs since the epoch.
        end_us: The end of the time axis if it is later than the last moment, such as now.
        deadline_us: When the session's next deadline is due, if it is still alive.
    """

    moments: Sequence[Moment]
    beats: Mapping[str, Sequence[int]]
    end_us: int = 0
    deadline_us: int | None = None


class _Axis(NamedTuple):
    first_us: int
    last_us: int

    def x_of(self, at_us: int) -> float:
        share = (at_us - self.first_us) / max(self.last_us - self.first_us, 1)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 2)


def draw_picture(chart: Chart) -> Element:
    """Return the picture as an `svg` element; each mark has a title that names it."""
    moments = chart.moments
    lanes = list(dict.fromkeys(moment.lane for moment in moments))
    ends = [moment.at_us + round((moment.took_s or 0) * 1e6) for moment in moments]
    axis = _Axis(moments[0].at_us, max(*ends, chart.end_us, chart.deadline_us or 0, moments[0].at_us + 1))
    lanes_y = _STATE_Y + _STATE_HEIGHT + 16
    cost_y = lanes_y + _LANE_HEIGHT * len(lanes) + 10
    height = cost_y + _COST_HEIGHT + _AXIS_HEIGHT
    svg = Element("svg", {"viewBox": f"0 0 {_WIDTH} {height}", "role": "img", "xmlns": "http://www.w3.org/2000/svg"})
    _add_title(svg, f"{len(moments)} moments of a session, in {len(lanes)} lanes")
    _draw_axis(svg, axis, height - _AXIS_HEIGHT)
    _draw_states(svg, axis, moments)
    for number, lane in enumerate(lanes):
        of_lane = [moment for moment in moments if moment.lane == lane]
        _draw_lane(svg, axis, lanes_y + number * _LANE_HEIGHT, lane, of_lane, chart.beats.get(lane, ()))
    _draw_cost(svg, axis, cost_y, moments)
    if chart.deadline_us is not None:
        _draw_deadline(svg, axis, chart.deadline_us, height - _AXIS_HEIGHT)
    return svg


def _add_title(parent: Element, text: str) -> None:
    SubElement(parent, "title").text = text


def _add_text(parent: Element, x: float, y: float, text: str, **attributes: str) -> None:
    SubElement(parent, "text", {"x": f"{x}", "y": f"{y}", **attributes}).text = text


def _add_mark(parent: Element, tag: str, title: str, **attributes: object) -> None:
    names = {name.rstrip("_").replace("_", "-"): f"{value}" for name, value in attributes.items()}
    _add_title(SubElement(parent, tag, names), title)


def _draw_axis(svg: Element, axis: _Axis, y: float) -> None:
    span_s = (axis.last_us - axis.first_us) / 1e6
    step_s = next((step for step in _STEPS_S if span_s / step <= _TICKS_MAX), span_s / _TICKS_MAX)
    for number in range(int(span_s / step_s) + 1):
        x = axis.x_of(axis.first_us + round(number * step_s * 1e6))
        _add_mark(svg, "line", "", class_="grid", x1=x, x2=x, y1=_STATE_Y, y2=y)
        _add_text(svg, x, y + 18, "+" + format_duration(number * step_s) if number else "0", **{"class": "tick"})


def _draw_states(svg: Element, axis: _Axis, moments: Sequence[Moment]) -> None:
    changes = [(moment.at_us, moment.states[1]) for moment in moments if moment.states]
    _add_text(svg, 4, _STATE_Y + 15, "state", **{"class": "lane"})
    for number, (at_us, state) in enumerate(changes):
        end_us = changes[number + 1][0] if number + 1 < len(changes) else axis.last_us
        x, width = axis.x_of(at_us), max(axis.x_of(end_us) - axis.x_of(at_us), 1)
        title = f"{state} for {format_duration((end_us - at_us) / 1e6)}"
        _add_mark(
            svg, "rect", title, class_=f"state {state}", x=x, y=_STATE_Y, width=round(width, 2), height=_STATE_HEIGHT
        )
        if width > 9 * len(state):
            _add_text(svg, x + 6, _STATE_Y + 15, state, **{"class": "state-name"})


def _draw_lane(svg: Element, axis: _Axis, y: float, lane: str, moments: Iterable[Moment], beats: Iterable[int]) -> None:
    _add_text(svg, 4, y + 16, lane if len(lane) <= 20 else lane[:19] + "…", **{"class": "lane"})
    middle = y + _BAR_HEIGHT / 2 + 4
    _add_mark(svg, "line", "", class_="lane-line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=middle, y2=middle)
    for at_us in beats:
        x = axis.x_of(at_us)
        _add_mark(svg, "line", f"heartbeat at {clock_text(at_us)}", class_="beat", x1=x, x2=x, y1=y + 26, y2=y + 32)
    for moment in moments:
        _draw_moment(svg, axis, y + 4, moment)


def _draw_moment(svg: Element, axis: _Axis, y: float, moment: Moment) -> None:
    x, title = axis.x_of(moment.at_us), f"{clock_text(moment.at_us)} {moment.name}: {describe_moment(moment)}"
    if moment.rejection:
        cross = f"M{x - 5} {y + 2} l10 10 m0 -10 l-10 10"
        _add_mark(svg, "path", title, class_="rejection", d=cross)
    elif moment.took_s is not None:
        width = axis.x_of(moment.at_us + round(moment.took_s * 1e6)) - x
        title = f"{title} ({format_duration(moment.took_s)})"
        kind = "model" if moment.name.partition(" ")[0] == "llm" else "tool"
        _add_mark(
            svg,
            "rect",
            title,
            class_=f"bar {kind}",
            x=x,
            y=y,
            width=max(round(width, 2), _BAR_WIDTH_MIN),
            height=_BAR_HEIGHT,
        )
    elif not moment.producer_id:
        _add_mark(svg, "path", title, class_="deadline", d=f"M{x} {y} l7 7 l-7 7 l-7 -7 z")
    else:
        _add_mark(svg, "circle", title, class_="event", cx=x, cy=y + _BAR_HEIGHT / 2, r=4)


def _draw_cost(svg: Element, axis: _Axis, y: float, moments: Sequence[Moment]) -> None:
    costs = [(moment.at_us, moment.usage.cost_usd_nanos) for moment in moments if moment.usage is not None]
    total = sum(cost for _, cost in costs)
    _add_text(svg, 4, y + 16, "cost", **{"class": "lane"})
    if not total:
        _add_text(svg, _LEFT, y + 16, "none recorded", **{"class": "tick start"})
        return
    base, so_far = y + _COST_HEIGHT - 8, 0
    path = f"M{_LEFT} {base}"
    for at_us, cost in costs:
        so_far += cost
        path += f" H{axis.x_of(at_us)} V{round(base - so_far / total * (_COST_HEIGHT - 24), 2)}"
    path += f" H{_WIDTH - _RIGHT}"
    _add_mark(svg, "path", f"cost so far, up to {format_usd(total)}", class_="cost", d=path)
    _add_text(svg, _WIDTH - _RIGHT, y + 10, format_usd(total), **{"class": "total"})


def _draw_deadline(svg: Element, axis: _Axis, due_us: int, y: float) -> None:
    x, title = axis.x_of(due_us), f"the next deadline is due at {clock_text(due_us)}"
    _add_mark(svg, "line", title, class_="due", x1=x, x2=x, y1=_STATE_Y - 8, y2=y)
    _add_text(svg, x, _STATE_Y - 12, f"deadline {clock_text(due_us)}", **{"class": "total"})


_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #66707f; --line: #d5dae2; --paper: #fff; --warn: #c62828;
  --model: #2f6fde; --tool: #d9822b; --good: #2e8540; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7ee; --dim: #97a1b0; --line: #3a4350; --paper: #151a21;
  --warn: #ff6b6b; --model: #6ea2ff; --tool: #ffb25e; --good: #63c17a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1240px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; }
dl { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: 1rem 0; }
dt { color: var(--dim); font-size: .8rem; } dd { margin: 0; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .tick { fill: var(--dim); text-anchor: middle; } svg .start { text-anchor: start; }
svg .lane { font-weight: 600; } svg .total { text-anchor: end; } svg .state-name { fill: #fff; }
.grid, .lane-line { stroke: var(--line); } .beat { stroke: var(--good); stroke-width: 1.5; }
.bar.model { fill: var(--model); } .bar.tool { fill: var(--tool); } .event { fill: var(--dim); }
.rejection { stroke: var(--warn); stroke-width: 3; fill: none; } .deadline { fill: var(--warn); }
.due { stroke: var(--warn); stroke-dasharray: 5 4; } .cost { stroke: var(--good); stroke-width: 2; fill: none; }
.state { fill: #7a8699; } .Active { fill: #2e8540; } .Paused { fill: #5c6bc0; } .Error, .Timeout { fill: #c62828; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th { text-align: left; color: var(--dim); } td, th { padding: .2rem .6rem .2rem 0; border-top: 1px solid var(--line);
  vertical-align: top; } td { overflow-wrap: anywhere; } td.short { white-space: nowrap; overflow-wrap: normal;
  max-width: 14rem; overflow: hidden; text-overflow: ellipsis; font-variant-numeric: tabular-nums; }
.rejected td { color: var(--warn); } .legend { color: var(--dim); font-size: .85rem; }
"""
_LEGEND: Final = (
    "Bars: blue a model call, orange other work; an activity lasts until the process's next event. "
    "Green strokes: heartbeats. "
    "Red crosses: rejected events. Red diamonds: deadlines that fired. Move the pointer over a mark to read it."
)


class Heading(NamedTuple):
    """The text of the page above the picture.

    Attributes:
        tenant: The tenant.
        session: The session's id.
        facts: Further facts by name, such as the state and the user.
        integrity: The answer of `v_integrity`, with its time.
        cut: The parts that the page leaves out; empty if the page is complete.
    """

    tenant: str
    session: str
    facts: Mapping[str, str]
    integrity: str
    cut: str = ""


def render_page(heading: Heading, chart: Chart) -> str:
    """Return the HTML of a story; `chart` has at least one moment."""
    html = Element("html", {"lang": "en"})
    head = SubElement(html, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width"})
    SubElement(head, "title").text = f"Session {heading.session}"
    SubElement(head, "style").text = _STYLE
    body = SubElement(html, "body")
    SubElement(body, "h1").text = f"{heading.tenant}: session {heading.session}"
    facts = SubElement(body, "dl")
    for name, value in {**_reported_facts(chart.moments), **heading.facts, "integrity": heading.integrity}.items():
        fact = SubElement(facts, "div")
        SubElement(fact, "dt").text, SubElement(fact, "dd").text = name, value
    if heading.cut:
        SubElement(body, "p", {"class": "cut"}).text = heading.cut
    body.append(draw_picture(chart))
    SubElement(body, "p", {"class": "legend"}).text = _LEGEND
    _add_table(body, chart.moments)
    return "<!doctype html>\n" + tostring(html, encoding="unicode", method="html") + "\n"


def _reported_facts(moments: Sequence[Moment]) -> dict[str, str]:
    totals = add_totals(moments)
    span_s = (moments[-1].at_us - moments[0].at_us) / 1e6
    return {
        "began (UTC)": clock_text(moments[0].at_us, date=True),
        "from first to last moment": format_duration(span_s),
        "agents and processes": ", ".join(totals.lanes),
        "tokens": f"{totals.tokens_in:,} in, {totals.tokens_out:,} out",
        "cost": format_usd(totals.cost_usd_nanos),
        "rejected": f"{totals.rejections:,}",
    }


def _add_table(body: Element, moments: Sequence[Moment]) -> None:
    table = SubElement(body, "table")
    head = SubElement(table, "tr")
    for title in ("time (UTC)", "agent", "event", "what", "took"):
        SubElement(head, "th").text = title
    for moment in moments:
        row = SubElement(table, "tr", {"class": "rejected"} if moment.rejection else {})
        for text in (clock_text(moment.at_us), moment.lane, moment.name):
            SubElement(row, "td", {"class": "short", "title": text}).text = text
        SubElement(row, "td").text = describe_moment(moment)
        took = "" if moment.took_s is None else format_duration(moment.took_s)
        SubElement(row, "td", {"class": "short"}).text = took
