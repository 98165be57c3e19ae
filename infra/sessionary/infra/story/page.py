"""A story as one HTML file that needs nothing else; pure."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

from sessionary.infra.story.event_text import clock_text, format_duration, format_usd
from sessionary.infra.story.picture import Chart, draw_picture
from sessionary.infra.story.story import Moment, add_totals, describe_moment

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
.refusal { stroke: var(--warn); stroke-width: 3; fill: none; } .deadline { fill: var(--warn); }
.due { stroke: var(--warn); stroke-dasharray: 5 4; } .cost { stroke: var(--good); stroke-width: 2; fill: none; }
.state { fill: #7a8699; } .Active { fill: #2e8540; } .Paused { fill: #5c6bc0; } .Error, .Timeout { fill: #c62828; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th { text-align: left; color: var(--dim); } td, th { padding: .2rem .6rem .2rem 0; border-top: 1px solid var(--line);
  vertical-align: top; } td { overflow-wrap: anywhere; } td.short { white-space: nowrap; overflow-wrap: normal;
  max-width: 14rem; overflow: hidden; text-overflow: ellipsis; font-variant-numeric: tabular-nums; }
.refused td { color: var(--warn); } .legend { color: var(--dim); font-size: .85rem; }
"""
_LEGEND: Final = (
    "Bars: blue a model call, orange other work; an activity lasts until the process's next event. "
    "Green strokes: heartbeats. "
    "Red crosses: refused events. Red diamonds: deadlines that fired. Move the pointer over a mark to read it."
)


class Heading(NamedTuple):
    """What the page says above the picture.

    Attributes:
        tenant: The tenant.
        session: The session's id.
        facts: Further facts by name, such as the state and the user.
        integrity: What `v_integrity` answers, with the time of the answer.
        cut: What the page leaves out; empty if it is whole.
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
    for name, value in {**_told_facts(chart.moments), **heading.facts, "integrity": heading.integrity}.items():
        fact = SubElement(facts, "div")
        SubElement(fact, "dt").text, SubElement(fact, "dd").text = name, value
    if heading.cut:
        SubElement(body, "p", {"class": "cut"}).text = heading.cut
    body.append(draw_picture(chart))
    SubElement(body, "p", {"class": "legend"}).text = _LEGEND
    _add_table(body, chart.moments)
    return "<!doctype html>\n" + tostring(html, encoding="unicode", method="html") + "\n"


def _told_facts(moments: Sequence[Moment]) -> dict[str, str]:
    totals = add_totals(moments)
    span_s = (moments[-1].at_us - moments[0].at_us) / 1e6
    return {
        "began (UTC)": clock_text(moments[0].at_us, date=True),
        "from first to last moment": format_duration(span_s),
        "agents and processes": ", ".join(totals.lanes),
        "tokens": f"{totals.tokens_in:,} in, {totals.tokens_out:,} out",
        "cost": format_usd(totals.cost_usd_micros),
        "refused": f"{totals.refusals:,}",
    }


def _add_table(body: Element, moments: Sequence[Moment]) -> None:
    table = SubElement(body, "table")
    head = SubElement(table, "tr")
    for title in ("time (UTC)", "agent", "event", "what", "took"):
        SubElement(head, "th").text = title
    for moment in moments:
        row = SubElement(table, "tr", {"class": "refused"} if moment.refusal else {})
        for text in (clock_text(moment.at_us), moment.lane, moment.name):
            SubElement(row, "td", {"class": "short", "title": text}).text = text
        SubElement(row, "td").text = describe_moment(moment)
        took = "" if moment.took_s is None else format_duration(moment.took_s)
        SubElement(row, "td", {"class": "short"}).text = took
