"""The verbs for the work in a session."""

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest

from sessionary.producers import (
    Invalid,
)
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import (
    LlmDecision,
    StateUpdated,
)
from tests.core.producers.sent_events import START_EVENTS, sent_types


def test_update_state_counts_versions_and_sends_its_phases() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u", state={"n": 0}) as s:
        assert [s.update_state({"n": n}) for n in (1, 2)] == [2, 3]
        assert s.state == {"n": 2}
    updates = [event.payload for event in memory.events() if isinstance(event.payload, StateUpdated)]
    assert [(u.base_version, u.new_version) for u in updates] == [(1, 2), (2, 3)]
    assert sent_types(memory)[4:6] == ["state_updated", "state_updated"]


def test_an_update_is_one_event() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        before_us = time.time_ns() // 1_000
        assert [s.update_state({"n": n}) for n in (1, 2)] == [2, 3]
    assert sent_types(memory) == [*START_EVENTS, "state_updated", "state_updated", "session_terminated"]
    event = memory.events()[4]
    update = event.payload
    assert isinstance(update, StateUpdated)
    assert update.updating_at is not None
    assert update.persisting_at is not None
    assert before_us <= update.updating_at <= update.persisting_at <= event.envelope.occurred_at


def test_values_that_cannot_be_accepted_take_no_number() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        with pytest.raises(Invalid, match="reference"):
            s.activity("big", "x" * (1 << 20))
        with pytest.raises(Invalid, match="state_too_large"):
            s.update_state({"big": "x" * (1 << 20)})
        with pytest.raises(Invalid):
            s.update_state({"set": {1, 2}})
        with pytest.raises(Invalid):
            s.update_state({"nan": float("nan")})
        with pytest.raises(Invalid):
            s.activity(7)  # type: ignore[arg-type]
        s.activity("fine")
    assert sent_types(memory) == [*START_EVENTS, "session_activity", "session_terminated"]
    with pytest.raises(Invalid):
        client.create(user_id="u", session_id="")


def test_fields_of_a_call_reach_the_envelope_and_the_trace_its_header() -> None:
    client, memory = memory_client()
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    with client, client.session(user_id="u") as s:
        s.context_bytes = 42
        s.emit(
            LlmDecision(chosen_tools=("search",)),
            run_id="r",
            step_id="s",
            causation_id="c",
            actor="boss",
            traceparent=trace,
            occurred_at=datetime(1970, 1, 1, microsecond=7, tzinfo=UTC),
        )
    event, record = memory.events()[4], memory.records()[4]
    envelope = event.envelope
    assert (envelope.run_id, envelope.step_id, envelope.causation_id) == ("r", "s", "c")
    assert (envelope.actor, envelope.occurred_at, envelope.context_bytes) == ("boss", 7, 42)
    assert ("traceparent", trace.encode()) in record.headers


@pytest.mark.parametrize(
    ("moment", "micros"),
    [
        (datetime(2026, 11, 22, 3, 4, 5, 678_901, tzinfo=UTC), 1_795_316_645_678_901),
        (datetime(2026, 11, 22, 5, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=2))), 1_795_316_645_678_901),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
    ],
)
def test_the_time_of_an_event_is_sent_in_microseconds_whatever_its_timezone(moment: datetime, micros: int) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        s.emit(LlmDecision(chosen_tools=("search",)), occurred_at=moment)
    assert memory.events()[4].envelope.occurred_at == micros


_FAR: Final = (
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1900, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    datetime(2300, 1, 1, tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
)


@pytest.mark.parametrize("moment", _FAR)
def test_a_time_that_no_table_can_hold_is_refused_with_what_is_allowed(moment: datetime) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        with pytest.raises(Invalid, match=f"{moment.year:04}-.*1900 to 2299"):
            s.emit(LlmDecision(chosen_tools=("search",)), occurred_at=moment)
        s.emit(LlmDecision(chosen_tools=("search",)), occurred_at=datetime(1900, 1, 1, tzinfo=UTC))
        s.emit(LlmDecision(chosen_tools=("search",)), occurred_at=datetime(2299, 12, 31, 23, 59, 59, 999_999, UTC))
    assert sent_types(memory) == [*START_EVENTS, "llm_decision", "llm_decision", "session_terminated"]


@pytest.mark.parametrize("moment", [datetime(2026, 11, 22), 1_795_316_645, "2026-11-22"])  # noqa: DTZ001
def test_a_time_without_a_timezone_is_refused_and_takes_no_number(moment: Any) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s, pytest.raises(Invalid, match="timezone"):
        s.emit(LlmDecision(chosen_tools=("search",)), occurred_at=moment)
    assert sent_types(memory) == [*START_EVENTS, "session_terminated"]
