"""Edges that no random walk comes upon often enough: each of these was found by a mutant that lived."""

from sessionary.stream_processors.timers import Timers
from tests.core.court import Court
from tests.support.scribe import Scribe, snapshot


def test_a_resume_names_the_head_of_the_chain_or_nothing() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    for name in ("nowhere", "first", "another", "", "None"):
        assert court.says(agent, "session_paused", snapshot=snapshot("held")) == "applied"
        assert court.says(agent, "session_resumed", snapshot_id=name) == "refused version_conflict"
        assert court.says(agent, "session_resumed", snapshot_id="held") == "applied"


def test_timers_count_sessions_and_not_entries() -> None:
    timers = Timers()
    timers.fill([(5, b"a"), (7, b"b")])
    assert len(timers) == 2
    timers.schedule(b"a", 3)
    timers.schedule(b"c", 9)
    assert len(timers) == 3
