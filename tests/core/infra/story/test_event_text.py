"""What an event says, in a few words."""

from typing import Any

import pytest

from sessionary.infra.story.event_text import event_name, event_text, format_bytes, format_duration, format_usd
from sessionary.schemas.events import EVENT_TYPES
from tests.core.infra.story.story_rows import USAGE


@pytest.mark.parametrize(
    ("event_type", "payload", "name", "text"),
    [
        ("session_activity", {"kind": "llm", "text": "reads\nthe  invoice"}, "llm", "reads the invoice"),
        ("usage_recorded", USAGE, "usage", "large, 1,200 tokens in, 300 out, $0.0055"),
        ("usage_recorded", {**USAGE, "cache_read_input_tokens": 1_000, "reasoning_output_tokens": 250, "retries": 2,
         "time_to_first_token_ms": 480, "response_id": "resp-1"}, "usage",
         "large, 1,200 tokens in (1,000 cached), 300 out (250 reasoning), $0.0055, first token after 0.48 s, "
         "2 retries, response resp-1"),
        ("state_updated", {"new_version": 3, "state_json": '{"a":1}'}, "state", 'version 3, 7 B: {"a":1}'),
        ("progress_reported", {"progress": 1.0, "total": 4.0, "message": "pages"}, "progress", "1 of 4: pages"),
        ("session_paused", {"kind": "review", "reason": "a person"}, "paused", "review: a person"),
        ("session_errored", {"error": {"error_class": "fatal", "message": "no"}}, "errored", "fatal: no"),
        ("session_created", {"limits": {"idle_ms": 9, "override": False}}, "created", "idle_ms 9"),
        ("resources_released", {"actions": [{"action": "a", "done": True}, {"action": "b", "done": False}]}, "released",
         "1 of 2 actions done, not: b"),
        ("tool_call_failed", {"tool_name": "t", "error": {"error_class": "retryable", "code": "E"}}, "t",
         "failed, retryable: E"),
        ("tool_call_started", {"tool_name": "search", "args_json": '{"q": 1}'}, "search", '{"q": 1}'),
        ("step_started", {"name": "llm large", "input_json": None}, "llm large", ""),
        ("agent_registered", {"role": "critic"}, "agent registered", "role critic"),
    ],
)  # fmt: skip
def test_an_event_has_a_name_and_a_text(event_type: str, payload: dict[str, Any], name: str, text: str) -> None:
    assert (event_name(event_type, payload), event_text(event_type, payload)) == (name, text)


def test_every_type_of_event_has_a_text_whatever_its_payload_lacks() -> None:
    for event_type in EVENT_TYPES.values():
        assert event_text(event_type, None) == "(content removed by retention)"
        assert isinstance(event_text(event_type, {}), str)


def test_a_text_is_one_line_without_characters_that_move_the_cursor() -> None:
    payload = {"kind": "x\x1b[2J", "text": "a\x1b[31m\r\nb\x00"}
    assert event_name("session_activity", payload) == "x [2J"
    assert event_text("session_activity", payload) == "a [31m b"


def test_numbers_are_written_as_people_read_them() -> None:
    assert [format_bytes(count) for count in (0, 999, 1_200, 3_400_000)] == ["0 B", "999 B", "1.2 kB", "3.4 MB"]
    assert [format_usd(nanos) for nanos in (0, 75, 5_400_000, 1_500_000_000)] == [
        "$0.00",
        "$0.000000075",
        "$0.0054",
        "$1.50",
    ]
    durations = [format_duration(seconds) for seconds in (0.0004, 0.9996, 25.0, 59.97, 3_600, 3_780)]
    assert durations == ["0 ms", "1 s", "25 s", "1 min", "1 h", "1 h 3 min"]
