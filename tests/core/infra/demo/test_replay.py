"""The demo of replays: over the memory it has its counts, and a wrong count is a fault."""

from sessionary.infra.clickhouse_client import Row
from sessionary.infra.demo import replay
from sessionary.infra.demo.replay import (
    BASKETS,
    SOURCES,
    Buyer,
    ReplayReport,
    record_purchases,
    replay_purchases,
    right_counts,
)
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import SessionCreated

POINTS = sum(map(len, BASKETS))


def good_report(replays: list[Row]) -> ReplayReport:
    """Return a report of these replays, whose other tables are as they must be."""
    asked = ("points", "as_the_agent_had_it", "as_the_processor_held_it")
    right = right_counts()
    compared = ("parted_at", "recorded", "fork", "parent_named")
    comparisons = [
        {"session": row, **{name: right[f"{name} of {row}"] for name in compared}}
        for row in (f"session {number}" for number in range(1, len(BASKETS) + 1))
    ]
    travels = [{"source": source, **dict.fromkeys(asked, POINTS)} for source in SOURCES]
    return ReplayReport(replays, travels, comparisons, {})


def test_replays_and_forks_of_recorded_agents_come_to_their_counts() -> None:
    client, memory = memory_client("acme", "research", "buyer")
    buyer, said = Buyer(), list[str]()
    with client:
        purchases, recorded = record_purchases(client, buyer, said.append)
        assert [content for each in purchases for _, content in each.points][:2] == [
            {"ordered": ["bolt"]},
            {"ordered": ["bolt", "gear"]},
        ]
        replays, forks = replay_purchases(client, buyer, purchases, said.append)
    assert memory.rejections() == []
    report = good_report([recorded, *replays])
    assert report.faults == {}
    assert report.counts() == right_counts()
    created = {
        event.envelope.session_id: event.payload.parent_session_id
        for event in memory.events()
        if isinstance(event.payload, SessionCreated)
    }
    assert [created[forks[each.session_id]] for each in purchases] == [each.session_id for each in purchases]
    assert buyer.done.count("ask_person") == len(BASKETS)
    assert [line.split(":")[0] for line in said] == ["recording"] * 3 + ["replaying"] * 3 + ["forking"] * 6


def test_a_count_that_is_not_what_it_must_be_is_a_fault_with_both() -> None:
    report = good_report([])
    assert report.faults["executed of strict replay"] == "None instead of 0"
    rows: list[Row] = [{"step": "strict replay", "executed": 1}]
    report = report._replace(replays=rows, travels=report.travels[:2])
    assert report.faults["executed of strict replay"] == "1 instead of 0"
    assert report.faults["points of memory"] == f"None instead of {POINTS}"


def test_an_agent_that_does_something_else_when_it_is_replayed_is_found() -> None:
    client, _ = memory_client("acme", "research", "buyer")
    buyer = Buyer()
    with client:
        purchases, recorded = record_purchases(client, buyer, lambda _text: None)
        other = [each._replace(parts=each.parts[:-1]) for each in purchases]
        row = replay._replay(client, buyer, other, lambda _text: None)
    faults = good_report([recorded, row]).faults
    lost = len(BASKETS) * replay.CALLS_PER_PART
    assert faults["served of strict replay"] == f"{POINTS * 3 - lost} instead of {POINTS * 3}"
    assert faults["reproduced of strict replay"] == f"0 instead of {len(BASKETS)}"
