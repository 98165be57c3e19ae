"""One result is swapped, and the log is folded again by the same rules."""

from collections import Counter

import pytest

from sessionary.producers import Invalid, SessionLost, tool
from sessionary.producers.replay.errors import PointNotFound
from sessionary.producers.replay.simulate import Simulation, simulate
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.producers.testing.judged_log import Judge
from sessionary.producers.testing.memory_runs import MemoryRecords
from sessionary.schemas.events import StateUpdated, ToolCallSucceeded, TxnCommitted
from sessionary.schemas.ids import SessionKey


@tool(effect="read")
def price(item: str) -> int:
    return 7


def recorded() -> tuple[InMemoryTransport, SessionKey]:
    client, memory = memory_client()
    with client.session(user_id="u1", state={"n": 0}) as session:
        with session.run("buy") as run:
            found = price("screw")
            run.result = found
        session.update_state({"n": found})
    return memory, SessionKey("acme", session.session_id)


def event_of(memory: InMemoryTransport, kind: type) -> tuple[str, int]:
    found = next(each for each in memory.verdicts() if isinstance(each.event.payload, kind))
    return found.event.envelope.event_id, found.offset


def test_another_result_of_a_tool_gives_the_other_state_and_leaves_the_log_as_it_is() -> None:
    """R-004-56: the fold gives the alternative state without touching the stored log."""
    memory, key = recorded()
    before = list(memory.core.log.entries)
    event_id, offset = event_of(memory, ToolCallSucceeded)
    outcome = simulate(MemoryRecords(memory), key, event_id, {"price": 9}, 1.0)
    assert outcome.first is not None
    assert (outcome.first.offset, outcome.first.event_type) == (offset, "tool_call_succeeded")
    assert outcome.first.what.startswith("result_json of the row ")
    assert (outcome.first.recorded, outcome.first.simulated) == ("'7'", "'{\"price\":9}'")
    assert f"{outcome.first}".endswith("is '{\"price\":9}', and was '7'")
    assert (outcome.events, outcome.rows_differing) == (
        len(memory.events()),
        2,
    )  # the call, and the last result of its session
    assert memory.core.log.entries == before


def test_the_same_result_differs_in_nothing() -> None:
    memory, key = recorded()
    _, offset = event_of(memory, ToolCallSucceeded)
    assert simulate(MemoryRecords(memory), key, f"{offset}", 7, 1.0) == Simulation(len(memory.events()), None, 0)


def test_a_long_log_is_compared_by_the_rows_that_its_events_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a log in which nothing differs takes a time that grows with its square."""
    memory, key = recorded()
    _, offset = event_of(memory, ToolCallSucceeded)
    asked = Counter[str]()

    def count(name: str) -> None:
        method = getattr(Judge, name)
        monkeypatch.setattr(Judge, name, lambda *args: asked.update([name]) or method(*args))

    count("list_rows")
    count("find_child")
    assert simulate(MemoryRecords(memory), key, f"{offset}", 7, 1.0).first is None
    later = sum(each.offset >= offset for each in memory.verdicts())
    assert asked["list_rows"] == 2  # once each, at the end
    assert later < asked["find_child"] <= 2 * 3 * later  # an event writes at most three rows


def test_another_content_shows_in_the_session() -> None:
    memory, key = recorded()
    event_id, _ = event_of(memory, StateUpdated)
    first = simulate(MemoryRecords(memory), key, event_id, {"n": 1}, 1.0).first
    assert first is not None
    assert (first.recorded, first.simulated) == ("'{\"n\":7}'", "'{\"n\":1}'")


def test_another_content_of_a_transaction_shows_in_the_session() -> None:
    client, memory = memory_client()
    with client.session(user_id="u1", state={"paid": False}) as session, session.transaction() as pending:
        pending["paid"] = True
    event_id, _ = event_of(memory, TxnCommitted)
    key = SessionKey("acme", session.session_id)
    first = simulate(MemoryRecords(memory), key, event_id, {"paid": None}, 1.0).first
    assert first is not None
    assert (first.recorded, first.simulated) == ("'{\"paid\":true}'", "'{\"paid\":null}'")


def test_an_unknown_event_or_session_and_an_event_without_a_result_are_refused() -> None:
    memory, key = recorded()
    reads = MemoryRecords(memory)
    with pytest.raises(PointNotFound, match="Event 0197-x not found"):
        simulate(reads, key, "0197-x", 1, 1.0)
    with pytest.raises(PointNotFound, match="Offset 9999 not found"):
        simulate(reads, key, "9999", 1, 1.0)
    with pytest.raises(SessionLost, match="is not known"):
        simulate(reads, SessionKey("globex", key.session_id), "1", 1, 1.0)
    with pytest.raises(Invalid, match="a session_created has no result to replace"):
        simulate(reads, key, memory.events()[0].envelope.event_id, 1, 1.0)
