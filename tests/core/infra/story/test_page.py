"""A story as one HTML file."""

from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import Element

from sessionary.infra.story.page import Chart, Heading, draw_picture, render_page
from sessionary.infra.story.story import Moment, make_story, time_us
from tests.core.infra.story.story_rows import USAGE, event_row, iso_time, outcome_row
from tests.support.browser import count_pixels, needs_chromium, take_screenshot


def reported_moments() -> list[Moment]:
    rows = [
        event_row(1, "session_created", {}),
        event_row(2, "session_activity", {"kind": "llm", "text": "<script>alert(1)</script>"}, at_s=1.0),
        event_row(3, "usage_recorded", USAGE, at_s=3.0),
        event_row(4, "session_activity", {"kind": "search"}, at_s=4.0, process="p2"),
        event_row(5, "session_activity", {"kind": "late"}, at_s=6.0, process="p2"),
    ]
    outcomes = [
        outcome_row(1, "transition", from_state="UNKNOWN", to_state="Active"),
        outcome_row(5, "rejection", reason_code="stale_epoch"),
        outcome_row(6, "transition", "session_timed_out", from_state="Active", to_state="Timeout", at_s=10.0),
    ]
    return make_story(rows, outcomes)


def marks(svg: Element, name: str) -> list[Element]:
    return [mark for mark in svg.iter() if name in mark.get("class", "").split()]


def test_the_picture_has_a_lane_for_each_process_and_a_mark_for_each_moment() -> None:
    start_us = time_us(iso_time(0.0))
    svg = draw_picture(
        Chart(reported_moments(), {"agent-1": [start_us + 2_000_000]}, deadline_us=start_us + 20_000_000)
    )
    assert [lane.text for lane in marks(svg, "lane")] == ["state", "agent-1", "agent-1 #2", "processor", "cost"]
    assert [float(bar.get("width", "")) for bar in marks(svg, "bar")] == [103.0, 103.0]  # 2 s of 20 s
    assert [len(marks(svg, name)) for name in ("model", "tool", "event", "rejection", "deadline", "beat", "due")] == [
        1, 1, 2, 1, 1, 1, 1,
    ]  # fmt: skip
    assert [rect.get("class") for rect in marks(svg, "state")] == ["state Active", "state Timeout"]
    assert [text.text for text in marks(svg, "total")] == ["$0.0055", "deadline 12:00:20.000"]


def test_a_picture_of_one_moment_has_a_width() -> None:
    svg = draw_picture(Chart(reported_moments()[:1], {}))
    assert marks(svg, "event")[0].get("cx") == "150.0"
    assert [text.text for text in marks(svg, "start")] == ["none recorded"]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_needs_nothing_else_and_runs_nothing_that_an_event_says() -> None:
    heading = Heading("acme", "s-1", {"state": "Timeout"}, "no row is missing (asked 12:00)", "Only the first 5.")
    reader = _Reader()
    reader.feed(render_page(heading, Chart(reported_moments(), {})))
    assert (reader.addresses, reader.tags.count("script"), reader.tags.count("svg")) == ([], 0, 1)
    assert reader.tags.count("tr") == 1 + len(reported_moments())
    words = {"<script>alert(1)</script>", "no row is missing (asked 12:00)", "Only the first 5.", "$0.0055", "Timeout"}
    assert words <= set(reader.texts)
    assert "rejected: stale_epoch" in reader.texts


@needs_chromium
def test_a_browser_shows_the_lanes_and_the_rejection(tmp_path: Path) -> None:
    """At the size of a window, and of a phone."""
    heading = Heading("acme", "s-1", {"state": "Timeout"}, "no row is missing (asked 12:00)")
    page = tmp_path / "story.html"
    page.write_text(render_page(heading, Chart(reported_moments(), {})), "utf-8")
    for width in (1280, 480):
        seen = take_screenshot(page, tmp_path / f"{width}.png", width, 800)
        assert seen.size == (width, 800)
        model, tool, rejected = (count_pixels(seen, colour) for colour in ("#2f6fde", "#d9822b", "#c62828"))
        assert min(model, tool, rejected) > width / 20
