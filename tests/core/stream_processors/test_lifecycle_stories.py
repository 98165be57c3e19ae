"""Stories: who did what, how time passed, and what the judge said. The auditor listens to each of them."""

import pytest

from sessionary.schemas.ids import SessionKey, derived_id, partition_of
from sessionary.schemas.records import Gravestone
from sessionary.schemas.types import CleanupAction, Limits
from tests.auditor.account import Account, account_of, differences
from tests.auditor.reading import LogEntry
from tests.core.court import SETTINGS, Court
from tests.support.scribe import Scribe, snapshot


def test_an_agent_that_dies_is_timed_out_resumed_and_laid_to_rest() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    assert court.says(agent, "state_updated", base_version=1, new_version=2, state_json='{"step": 2}') == "applied"

    # It dies. A minute without a word, and its time is up: not a moment earlier.
    assert court.passes(59_999) == []
    assert court.passes(1) == ["T06 inactive"]
    (line,) = court.last_audits()
    assert (line.due_at, line.fired_at) == (court.at * 1000, court.at * 1000)
    assert "60s" in line.reason
    assert list(line.cleanup_actions) == ["memory_cleanup", "close_connection", "release_context", "mark_closed"]

    # A last word comes too late, whatever it is; only the first of them is audited.
    assert court.says(agent, "session_activity") == "refused late"
    assert [line.reason_code for line in court.last_audits()] == ["late"]
    assert court.says(agent, "session_terminated") == "refused late"
    assert court.last_audits() == []

    # Somebody cleans up after it, then it rises: the epoch grows, the content is still there.
    released = {"cleanup_id": line.cleanup_id, "actions": [CleanupAction("memory_cleanup", True, 1)]}
    assert court.says(agent, "resources_released", {"epoch": 0}, **released) == "applied"
    assert court.row(agent).phase == "released"
    assert court.says(agent, "resources_released", {"epoch": 0}, **released) == "refused already_released"
    assert court.says(agent, "session_resumed", snapshot_id=None) == "applied"
    row = court.row(agent)
    assert (row.state, row.epoch, row.version, row.state_json) == ("Active", 2, 2, '{"step": 2}')

    # Its former self knows nothing of that.
    assert court.says(agent, "session_activity", {"epoch": 1}) == "refused stale_epoch"

    # It closes, nobody confirms the clean-up, and it is archived all the same. What stays keeps re-deliveries out.
    assert court.says(agent, "session_terminated", reason="closed") == "applied"
    assert court.passes(299_999) == []
    assert court.passes(1) == ["T14 archived"]
    assert isinstance(court.fold.rows[agent.key.encoded()], Gravestone)
    first = court.log[0]
    assert court.hear(first.key, first.value) == "duplicate"
    assert court.says(agent, "session_created") == "refused session_archived"
    assert court.passes(14 * 86_400_000 - 1_000, step_ms=86_400_000) == []
    court.at += 1_000
    court.tick()
    assert court.fold.rows == {}
    assert court.fold.next_deadline_ms is None


def test_heartbeats_keep_a_session_alive_but_not_at_work() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent, limits=Limits(idle_ms=120_000))
    for _ in range(11):
        assert court.passes(10_000) == []
        assert court.says(agent, "heartbeat") == "applied"
    assert court.outcomes[-1].audits == []
    assert court.passes(9_999) == []
    assert court.passes(1) == ["T06 idle"]


def test_a_held_session_keeps_what_is_left_of_its_time() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent, limits=Limits(max_duration_ms=50_000))
    court.passes(20_000)
    assert court.says(agent, "session_paused", snapshot=snapshot("held")) == "applied"
    assert court.passes(3_600_000, step_ms=5_000) == []
    assert court.says(agent, "session_resumed", snapshot_id="another") == "refused version_conflict"
    assert court.says(agent, "session_resumed", snapshot_id="held") == "applied"
    assert court.passes(29_999) == []
    assert court.passes(1) == ["T06 max_duration"]
    assert court.says(agent, "session_resumed", snapshot_id="held") == "refused max_duration_exceeded"
    ((_, rejected),) = court.outcomes[-1].rejected
    assert rejected.detail == "the session's maximum duration of 50s is over"


def test_a_session_does_not_complete_in_the_middle_of_a_write() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    for phase in ("updating", "persisting"):
        assert court.says(agent, "session_phase_changed", phase=phase) == "applied"
        assert court.says(agent, "session_terminated", reason="completed") == "refused phase_order"
    assert court.says(agent, "session_phase_changed", phase="processing") == "applied"
    assert court.says(agent, "session_terminated", reason="completed") == "applied"


@pytest.mark.parametrize("reason", ["closed", "cancelled", "abnormal_termination"])
@pytest.mark.parametrize("phase", ["updating", "persisting"])
def test_but_it_may_end_otherwise_there(reason: str, phase: str) -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    court.says(agent, "session_phase_changed", phase="updating")
    if phase == "persisting":
        court.says(agent, "session_phase_changed", phase=phase)
    assert court.says(agent, "session_terminated", reason=reason) == "applied"
    (line,) = court.last_audits()
    first = "exception_cleanup" if reason == "abnormal_termination" else "close_connection"
    assert line.cleanup_actions[0] == first


def test_an_outage_kills_nobody() -> None:
    court, quick, slow = Court(), Scribe("quick"), Scribe("slow")
    court.starts(quick)
    court.starts(slow)
    court.passes(30_000)
    court.at += 600_000  # nothing, not even a tick, for ten minutes
    assert court.says(quick, "heartbeat") == "applied"
    assert court.passes(24_999) == []
    assert court.passes(1) == ["T06 inactive"]  # the slow one had its time to speak
    assert court.row(quick).state == "Active"
    assert court.row(slow).state == "Timeout"


def test_a_late_processor_times_nobody_out() -> None:
    """The heartbeat stands in the log before the tick that would have killed, however late both are read."""
    court, agent = Court(), Scribe()
    court.starts(agent)
    court.passes(59_000)
    assert court.says(agent, "heartbeat") == "applied"
    court.at += 1_000
    court.tick()
    assert court.row(agent).state == "Active"


def test_many_deadlines_fire_in_the_order_in_which_they_were_due() -> None:
    court, agents = Court(), [Scribe(f"s{n}") for n in range(5)]
    for agent in agents:
        court.starts(agent)
        court.at += 1
    assert len(court.passes(60_000, step_ms=5_000)) == 5
    fired = [(line.due_at, key) for outcome in court.outcomes for key, line in outcome.audits if line.due_at]
    assert fired == sorted(fired)
    assert len({line.source_n for _, line in court.outcomes[-1].audits}) == 5


def test_losses_are_seen_and_stragglers_kept_out() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    agent.seq += 3
    assert court.says(agent, "session_activity") == "applied"
    assert [(line.kind, line.gap_first, line.gap_last) for line in court.last_audits()] == [("gap", 5, 7)]
    for seq, outcome in ((6, "refused late_filler"), (6, "refused late_filler"), (4, "duplicate"), (8, "duplicate")):
        assert court.says(agent, "session_activity", {"producer_seq": seq}) == outcome
    assert court.says(agent, "session_activity", {"producer_seq": 4, "epoch": 77}) == "duplicate"


def test_the_ledger_is_bounded() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    for _ in range(20):  # twenty gaps in sixteen ranges: the oldest grow together
        agent.seq += 1
        assert court.says(agent, "session_activity") == "applied"
    (ledger,) = court.row(agent).producers
    assert len(ledger.missing) == 16
    assert ledger.missing[0].first == 5
    for n in range(63):
        helper = Scribe(producer=f"helper-{n}")
        assert court.says(helper, "session_activity", {"epoch": 1}) == "applied"
    assert court.says(Scribe(producer="one-too-many"), "session_activity") == "refused too_many_producers"
    assert court.says(agent, "session_activity") == "applied"
    assert len(court.row(agent).producers) == 64


def test_a_session_remembers_its_last_sixteen_refusals() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    for _ in range(20):
        assert court.says(agent, "session_started") == "refused illegal_transition"
    assert [refusal.offset for refusal in court.row(agent).refusals] == list(range(8, 24))


def test_a_session_remembers_its_last_eight_clean_ups() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    for _ in range(10):
        assert court.passes(60_000, step_ms=5_000) == ["T06 inactive"]
        assert court.says(agent, "session_resumed", snapshot_id=None) == "applied"
    assert len(court.row(agent).cleanups) == 8
    assert court.row(agent).epoch == 11


def test_an_unknown_key_in_the_wrong_partition_is_refused() -> None:
    settings = SETTINGS._replace(partitions=4)
    agents = [Scribe(f"s{n}") for n in range(12)]
    homes = {partition_of(agent.key.encoded(), 4) for agent in agents}
    assert homes == {0, 1, 2, 3}
    for agent in agents:
        court = Court(settings, partition=2)
        at_home = partition_of(agent.key.encoded(), 4) == 2
        assert court.says(agent, "session_created") == ("applied" if at_home else "refused wrong_partition")


@pytest.mark.parametrize("event_type", ["session_created", "session_activity", "heartbeat"])
def test_a_foreign_tenant_reaches_nothing_and_is_reported(event_type: str) -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    before = court.row(agent)
    assert court.says(agent, event_type, {"tenant_id": "evil"}) == "refused foreign_tenant"
    assert court.outcomes[-1].rejected[0][1].security
    after = court.row(agent)
    assert after._replace(audit_seq=0) == before._replace(audit_seq=0)


def test_the_accounts_own_comparison_can_fail() -> None:
    agent = Scribe()
    key, value = agent.key.encoded(), agent.writes("session_created")
    entry = LogEntry(0, 0, 1_000, key, value)
    account = account_of([entry], partitions=1)
    court = Court()
    court.at = 1_000
    court.hear(key, value)
    ((_, right),) = court.outcomes[0].audits
    assert differences(account, [right._asdict()], [], []) == []
    assert differences(account, [], [], []) == ["0 audit lines instead of 1"]
    assert len(differences(account, [right._replace(to_state="Active")._asdict()], [])) == 1
    assert differences(account, [right._asdict()] * 2, []) != []
    refusal = {"source_partition": 0, "source_offset": 0, "reason": "late"}
    assert differences(account, [right._asdict()], [refusal]) == ["record (0, 0): refused late, expected None"]
    assert differences(account, [right._asdict()], [], [{"cleanup_id": "x", "actions": []}]) != []
    assert differences(Account(1), [], [], []) == []


def test_a_key_differs_by_tenant_though_the_session_is_the_same() -> None:
    court = Court()
    session = derived_id("shared")
    for tenant in ("acme", "zeta"):
        agent = Scribe(tenant=tenant)
        agent.key = SessionKey(tenant, session)
        assert court.says(agent, "session_created") == "applied"
    assert len(court.fold.rows) == 2
