"""The file that the Java program reads is the table, and the program knows all of its words."""

import re
from pathlib import Path

from benchmarks.measurements.streams_full_job import java_program, table
from benchmarks.workload.events import make_templates
from sessionary.infra.demo.runs import sample_runs
from sessionary.schemas.events import EVENT_TYPES
from sessionary.schemas.limits import ITEMS_MAX, NUMBER_MAX
from sessionary.stream_processors.core.session.transitions import (
    ACCEPTED,
    CONTENT_CHANGES,
    MEMBERSHIP,
    PHASES,
    TRANSITIONS,
)

JAVA = Path(java_program.__file__).parent / "java"


def enum_words(source: str, name: str) -> set[str]:
    """Return the constants of an enum in a source file of one line."""
    found = re.search(rf"enum {name} {{ ([A-Z_, ]+) }}", (JAVA / source).read_text("utf-8"))
    assert found is not None
    return {word.lower() for word in found[1].split(", ")}


def test_every_transition_is_in_the_file_with_all_that_it_says() -> None:
    rows = table.transition_table()["transitions"]
    judged = [transition for transition in TRANSITIONS if transition.by != "operator"]
    assert len(rows) == len(judged) >= 14
    for row, transition in zip(rows, judged, strict=True):
        assert (row["id"], row["source"], row["event_type"]) == (
            transition.id,
            transition.source,
            transition.event_type,
        )
        assert (row["target"], row["phase"], row["by"]) == (transition.target, transition.phase, transition.by)
        assert tuple(row["reasons"]) == transition.reasons
        assert [(clock["name"], clock["of_activity"]) for clock in row["clocks"]] == [
            (clock.name, clock.of_activity) for clock in transition.clocks
        ]
        assert tuple(row["cleanup"]["actions"]) == transition.cleanup.actions


def test_what_is_accepted_without_a_transition_is_in_the_file() -> None:
    content = table.transition_table()
    assert {state: set(names) for state, names in content["accepted"].items()} == ACCEPTED
    assert {state: set(pairs) for state, pairs in content["phases"].items()} == PHASES
    assert set(content["content_changes"]) == CONTENT_CHANGES
    assert set(content["membership"]) == MEMBERSHIP


def test_no_event_of_the_workload_is_left_out() -> None:
    sent = {EVENT_TYPES[type(line.payload)] for each in make_templates(sample_runs(20), 1) for line in each.lines}
    left_out = set(table.transition_table()["left_out"])
    assert {"tool_call_started", "message_appended", "session_paused"} <= sent
    assert left_out
    assert not sent & left_out
    assert left_out <= set(EVENT_TYPES.values())


def test_texts_that_the_rules_bound_have_their_bounds_in_the_file() -> None:
    bounds = table.transition_table()["bounds"]
    texts = bounds["characters"]
    assert (texts["Envelope.event_id"], texts["SessionPaused.reason"]) == (256, 16 << 10)
    assert (texts["ErrorInfo.code"], texts["LlmDecision.chosen_tools"]) == (256, 256)
    assert texts["MessageAppended.content"] == 1 << 20
    assert not {"StateUpdated.state_json", "Snapshot.state_json"} & texts.keys()
    assert (bounds["items"], bounds["number"]) == (ITEMS_MAX, NUMBER_MAX)


def test_the_program_knows_every_guard_effect_and_clock() -> None:
    rows = table.transition_table()["transitions"]
    assert {row["guard"] for row in rows} == enum_words("TransitionTable.java", "Guard")
    assert {row["effect"] for row in rows} == enum_words("TransitionTable.java", "Effect")
    clocks = set(re.findall(r"^    ([A-Z_]+) \{$", (JAVA / "SessionClock.java").read_text("utf-8"), re.M))
    assert {clock["name"] for row in rows for clock in row["clocks"]} == {name.lower() for name in clocks}
