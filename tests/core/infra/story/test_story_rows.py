"""Which rows of a session make up a story."""

from sessionary.infra.clickhouse_client import Row
from sessionary.infra.story.story_rows import fetch_story
from tests.core.infra.story.story_rows import StoredRows, event_row, outcome_row


def transition(offset: int) -> Row:
    return outcome_row(offset, "transition", "session_resumed", from_state="Paused", to_state="Active")


def test_outcomes_of_events_beyond_the_limit_are_left_out() -> None:
    source = StoredRows([event_row(offset, "session_resumed", {}) for offset in (1, 4, 7)], [*map(transition, (1, 7))])
    rows = fetch_story(source, "acme", "s1", 2)
    assert [row["source_offset"] for row in rows.outcomes] == [1], "else the third event is reported as a deadline"
    assert (len(rows.events), rows.is_cut) == (2, True)


def test_events_whose_outcomes_are_beyond_the_limit_are_left_out() -> None:
    rejected = [outcome_row(offset, "rejection", reason_code="not_owner") for offset in (1, 2, 3, 9)]
    source = StoredRows([event_row(1, "session_paused", {}), event_row(9, "session_paused", {})], rejected)
    rows = fetch_story(source, "acme", "s1", 3)
    assert [row["source_offset"] for row in rows.events] == [1], "else the rejected event is reported as accepted"
    assert rows.is_cut


def test_a_story_within_the_limit_has_the_deadlines_after_its_last_event() -> None:
    rows = fetch_story(StoredRows([event_row(1, "session_paused", {})], [*map(transition, (1, 7))]), "acme", "s1", 3)
    assert [row["source_offset"] for row in rows.outcomes] == [1, 7]
    assert not rows.is_cut
