"""The page of limits and clocks is what the code says, and its picture is what the judge does."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.build import limits_page
from docs.build.clock_effects import CLOCKS, ROWS, ClockEffect, EventRow, effects_of
from docs.build.clock_picture import amount_of, clock_picture
from sessionary.producers import ProducerSettings
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import PAYLOADS, SessionActivity
from sessionary.schemas.limits import DEFAULTS, HEARTBEATS_PER_BUDGET, LIMIT_MAX, RANGES, inactivity_budget_ms
from sessionary.stream_processors.core.session.clocks import ANSWER, QUOTA_SILENCE, QUOTA_WAIT, USER_IDLE
from sessionary.stream_processors.core.session.migration import MIGRATION_EVENTS
from sessionary.stream_processors.core.session.transitions import ACCEPTED, TRANSITIONS
from tests.core.fold_rig import FoldRig
from tests.style.project import ROOT
from tests.support.event_factory import EventFactory

_BY_NAME = {row.name: row for row in ROWS}


def effects(name: str) -> dict[str, ClockEffect]:
    return {column.clock.name: effect for column, effect in effects_of(_BY_NAME[name]).items()}


def test_the_page_and_the_picture_are_up_to_date() -> None:
    text = limits_page.PAGE.read_text("utf-8")
    assert limits_page.with_tables(text) == text, "make docs redraws it"
    assert limits_page.PICTURE.read_text("utf-8") == clock_picture(), "make docs redraws it"


def test_the_page_has_every_limit_with_its_default_and_range() -> None:
    table = limits_page.limits_table()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.M))
    assert list(rows) == list(DEFAULTS._fields)
    assert rows["idle_ms"].startswith("15 min | any |")
    for name, (low, high) in RANGES.items():
        assert f"{amount_of(name, low)} to {amount_of(name, high)}" in rows[name]
    assert all(len(row.split(" | ")) == 4 and row.split(" | ")[-1] for row in rows.values())


def test_the_numbers_of_the_text_are_those_of_the_code() -> None:
    text = " ".join(limits_page.PAGE.read_text("utf-8").split())
    beats_s = ProducerSettings.model_fields["heartbeat_interval_s"].default
    assert f"above 0 and at most {LIMIT_MAX:,}." in text
    assert f"every {beats_s:g} s or six times per inactivity budget" in text
    assert HEARTBEATS_PER_BUDGET == 6
    assert f"{inactivity_budget_ms(DEFAULTS) // 1_000} s by default" in text
    assert f"`idle_ms`: {DEFAULTS.idle_ms // 60_000} minutes by default" in text
    assert f"`max_duration_ms`, {DEFAULTS.max_duration_ms // 3_600_000} hours by default" in text


def test_every_clock_has_its_column() -> None:
    clocked = {(transition.source, clock) for transition in TRANSITIONS for clock in transition.clocks}
    clocked.remove(("Paused", ANSWER))  # a question's own: no limit of the session's
    clocked -= {("Idle", clock) for clock in (QUOTA_WAIT, QUOTA_SILENCE)}  # they run only while it waits
    clocked.remove(("Active", USER_IDLE))  # it runs between turns, while the others do not
    assert {(column.state, column.clock) for column in CLOCKS} == clocked


def test_every_event_that_may_be_accepted_has_one_row() -> None:
    named = [name for row in ROWS for name in row.event_types]
    assert len(named) == len(set(named))
    by_clients = {transition.event_type for transition in TRANSITIONS}
    assert (
        set(named)
        == by_clients | set().union(*ACCEPTED.values())
        == set(PAYLOADS) - MIGRATION_EVENTS - {"tool_call_unknown"}
    )


def test_heartbeats_postpone_inactivity_and_nothing_else() -> None:
    assert {name: effect for name, effect in effects("heartbeat").items() if effect is ClockEffect.RESTARTS} == {
        "inactivity": ClockEffect.RESTARTS
    }
    assert effects("heartbeat")["idle"] is ClockEffect.LEAVES


def test_what_the_other_events_move() -> None:
    assert effects("work")["idle"] is ClockEffect.RESTARTS
    assert effects("work")["max_duration"] is ClockEffect.LEAVES
    assert effects("session_paused")["max_duration"] is ClockEffect.PAUSES
    assert effects("session_paused")["hold"] is ClockEffect.STARTS
    assert effects("session_resumed")["max_duration"] is ClockEffect.CONTINUES
    assert effects("session_recovered")["max_duration"] is ClockEffect.LEAVES
    assert effects("session_resumed")["grace"] is ClockEffect.ENDS
    assert effects("session_timed_out")["grace"] is ClockEffect.STARTS
    assert effects("resources_released")["archive"] is ClockEffect.RESTARTS
    assert effects("state_updated")["hold"] is ClockEffect.REJECTED


# What a session without a run, a second agent and an artifact rejects.
_NEEDS_MORE = re.compile(r"run_|plan_|artifact_(?!created)|agent_task_updated|context_synced|txn_(?!begun)")


@pytest.mark.parametrize("row", [row for row in ROWS if len(row.event_types) > 1], ids=lambda row: str(row.name))
def test_all_events_of_a_row_move_the_same_clocks(row: EventRow) -> None:
    """The picture is drawn with one event of each row.

    An event that names a run, an agent or an artifact that does not exist is rejected, and moves
    none.
    """
    for name in row.event_types:
        rig, agent = FoldRig(), EventFactory()
        rig.start(agent)
        rig.advance(1_000)
        before = rig.row_of(agent)
        is_rejected = rig.send(agent, name) != "applied"
        after = rig.row_of(agent)
        moved = {column.clock.name for column in CLOCKS if column.clock.due_ms(after) != column.clock.due_ms(before)}
        assert is_rejected == bool(_NEEDS_MORE.match(name)), name
        expected = set() if is_rejected else {"inactivity", "idle"}
        assert moved & {"inactivity", "idle", "max_duration"} == expected, name


def test_a_rejected_event_moves_no_clock() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        session.pause()
        memory.advance(5)
        before = memory.find_row(session.session_id)
        session.core.emitter.emit(SessionActivity("work"))
        after = memory.find_row(session.session_id)
        assert memory.rejections()
        assert [column.clock.due_ms(after) for column in CLOCKS] == [column.clock.due_ms(before) for column in CLOCKS]


def test_the_picture_shows_every_row_and_clock_and_fits() -> None:
    picture = ElementTree.fromstring(clock_picture())
    texts = {text.strip() for text in picture.itertext() if text.strip()}
    assert {column.clock.name for column in CLOCKS} <= texts
    assert {row.name for row in ROWS} <= texts
    width, height = (float(number) for number in picture.attrib["viewBox"].split()[2:])
    xs = [float(element.attrib["x"]) for element in picture.iter() if "x" in element.attrib]
    ys = [float(element.attrib["y"]) for element in picture.iter() if "y" in element.attrib]
    assert 0 <= min(xs) <= max(xs) < width
    assert 0 <= min(ys) <= max(ys) < height


@pytest.mark.parametrize("text", ["", "<!-- limits: begin -->", "<!-- limits: end --><!-- limits: begin -->"])
def test_a_page_without_its_marks_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        limits_page.with_tables(text)


def test_drawing_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "limits.md"
    page.write_text(limits_page.PAGE.read_text("utf-8"))
    monkeypatch.setattr(limits_page, "PAGE", page)
    monkeypatch.setattr(limits_page, "PICTURE", tmp_path / "clocks.svg")
    assert limits_page.write() == (page, tmp_path / "clocks.svg")
    assert page.read_bytes() == (ROOT / "docs" / "limits.md").read_bytes()
    assert (tmp_path / "clocks.svg").read_text("utf-8") == clock_picture()
