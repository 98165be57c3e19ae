"""Scenarios: what agents do, how time passes, and how events are judged; the oracle checks each."""

import pytest

from sessionary.schemas.ids import SessionKey, derived_id, partition_of
from sessionary.schemas.records import Tombstone
from sessionary.schemas.types import CleanupAction, Limits
from tests.auditor.decoding import LogEntry
from tests.auditor.oracle import Oracle, find_differences, replay_log
from tests.core.oracle_rig import SETTINGS, OracleRig
from tests.support.event_factory import EventFactory, snapshot, snapshot_id


def test_an_agent_that_dies_is_timed_out_resumed_and_archived() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "state_updated", base_version=1, new_version=2, state_json='{"step": 2}') == "applied"

    # It dies. The session times out after a minute, not earlier.
    assert rig.advance(59_999) == []
    assert rig.advance(1) == ["T06 inactive"]
    (line,) = rig.last_audits()
    assert (line.due_at, line.fired_at) == (rig.at * 1000, rig.at * 1000)
    assert "60s" in line.reason
    assert list(line.cleanup_actions) == ["memory_cleanup", "close_connection", "release_context", "mark_closed"]

    # Any event is too late now; only the first is audited.
    assert rig.send(agent, "session_activity") == "rejected late"
    assert [line.reason_code for line in rig.last_audits()] == ["late"]
    assert rig.send(agent, "session_terminated") == "rejected late"
    assert rig.last_audits() == []

    # A clean-up is confirmed, then the session resumes: the epoch grows, the content is kept.
    released = {"cleanup_id": line.cleanup_id, "actions": [CleanupAction("memory_cleanup", True, 1)]}
    assert rig.send(agent, "resources_released", {"epoch": 0}, **released) == "applied"
    assert rig.row_of(agent).phase == "released"
    assert rig.send(agent, "resources_released", {"epoch": 0}, **released) == "rejected already_released"
    assert rig.send(agent, "session_resumed", snapshot_id=None) == "applied"
    row = rig.row_of(agent)
    assert (row.state, row.epoch, row.version, row.state_json) == ("Active", 2, 2, '{"step": 2}')

    # The former process still uses the old epoch.
    assert rig.send(agent, "session_activity", {"epoch": 1}) == "rejected stale_epoch"

    # It closes without a confirmed clean-up and is archived. Its tombstone rejects redeliveries.
    assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    assert rig.advance(299_999) == []
    assert rig.advance(1) == ["T14 archived"]
    assert isinstance(rig.fold.rows[agent.key.encoded()], Tombstone)
    first = rig.log[0]
    assert rig.append(first.key, first.value) == "rejected session_archived"
    assert rig.send(agent, "session_created") == "rejected session_archived"
    assert rig.advance(15 * 86_400_000 - 1_000, step_ms=86_400_000) == []  # to the end of its last day
    rig.at += 1_000
    rig.tick()
    assert rig.fold.rows == {}
    assert rig.fold.next_deadline_ms is None


def test_heartbeats_keep_a_session_alive_but_do_not_count_as_work() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=Limits(idle_ms=120_000))
    for _ in range(11):
        assert rig.advance(10_000) == []
        assert rig.send(agent, "heartbeat") == "applied"
    assert rig.outcomes[-1].records_on("audit") == []
    assert rig.advance(9_999) == []
    assert rig.advance(1) == ["T06 idle"]


def test_a_paused_session_keeps_the_rest_of_its_maximum_duration() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=Limits(max_duration_ms=50_000))
    rig.advance(20_000)
    assert rig.send(agent, "session_paused", snapshot=snapshot("held")) == "applied"
    assert rig.advance(3_600_000, step_ms=5_000) == []
    assert rig.send(agent, "session_resumed", snapshot_id=snapshot_id("another")) == "rejected version_conflict"
    assert rig.send(agent, "session_resumed", snapshot_id=snapshot_id("held")) == "applied"
    assert rig.advance(29_999) == []
    assert rig.advance(1) == ["T06 max_duration"]
    assert rig.send(agent, "session_resumed", snapshot_id=snapshot_id("held")) == "rejected max_duration_exceeded"
    ((_, rejected),) = rig.outcomes[-1].records_on("rejected")
    assert rejected.detail == "the session's maximum duration of 50s is over"


def test_a_session_does_not_complete_in_the_middle_of_a_write() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for phase in ("updating", "persisting"):
        assert rig.send(agent, "session_phase_changed", phase=phase) == "applied"
        assert rig.send(agent, "session_terminated", reason="completed") == "rejected phase_order"
    assert rig.send(agent, "session_phase_changed", phase="processing") == "applied"
    assert rig.send(agent, "session_terminated", reason="completed") == "applied"


@pytest.mark.parametrize("reason", ["closed", "cancelled", "abnormal_termination"])
@pytest.mark.parametrize("phase", ["updating", "persisting"])
def test_a_session_may_end_for_other_reasons_in_the_middle_of_a_write(reason: str, phase: str) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    rig.send(agent, "session_phase_changed", phase="updating")
    if phase == "persisting":
        rig.send(agent, "session_phase_changed", phase=phase)
    assert rig.send(agent, "session_terminated", reason=reason) == "applied"
    (line,) = rig.last_audits()
    first = "exception_cleanup" if reason == "abnormal_termination" else "close_connection"
    assert line.cleanup_actions[0] == first


def test_an_outage_times_out_no_session_with_a_live_agent() -> None:
    rig, quick, slow = OracleRig(), EventFactory("quick"), EventFactory("slow")
    rig.start(quick)
    rig.start(slow)
    rig.advance(30_000)
    rig.at += 600_000  # nothing, not even a tick, for ten minutes
    assert rig.send(quick, "heartbeat") == "applied"
    assert rig.advance(30_000) == []
    assert rig.send(quick, "heartbeat") == "applied"
    assert rig.advance(29_999) == []
    assert rig.advance(1) == ["T06 inactive"]  # the slow one had its whole limit to send something
    assert rig.row_of(quick).state == "Active"
    assert rig.row_of(slow).state == "Timeout"


def test_a_late_processor_causes_no_timeout() -> None:
    """The heartbeat is in the log before the tick; when both are read makes no difference."""
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    rig.advance(59_000)
    assert rig.send(agent, "heartbeat") == "applied"
    rig.at += 1_000
    rig.tick()
    assert rig.row_of(agent).state == "Active"


def test_many_deadlines_fire_in_the_order_in_which_they_were_due() -> None:
    rig, agents = OracleRig(), [EventFactory(f"s{n}") for n in range(5)]
    for agent in agents:
        rig.start(agent)
        rig.at += 1
    assert len(rig.advance(60_000, step_ms=4_000)) == 5
    fired = [(line.due_at, key) for outcome in rig.outcomes for key, line in outcome.records_on("audit") if line.due_at]
    assert fired == sorted(fired)
    assert len({line.source_n for _, line in rig.outcomes[-1].records_on("audit")}) == 5


def test_gaps_are_audited_and_late_fillers_rejected() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    agent.seq += 3
    assert rig.send(agent, "session_activity") == "applied"
    assert [(line.kind, line.gap_first, line.gap_last) for line in rig.last_audits()] == [("gap", 5, 7)]
    for seq, outcome in ((6, "rejected late_filler"), (6, "rejected late_filler"), (4, "rejected producer_conflict")):
        assert rig.send(agent, "session_activity", {"producer_seq": seq}) == outcome
    again = next(record for record in rig.log if record.offset == 3)
    assert rig.append(again.key, again.value) == "duplicate"


def test_the_ledger_is_bounded() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for _ in range(20):  # twenty gaps in sixteen ranges: the oldest are merged
        agent.seq += 1
        assert rig.send(agent, "session_activity") == "applied"
    (ledger,) = rig.row_of(agent).producers
    assert len(ledger.missing) == 16
    assert ledger.missing[0].first == 5
    for n in range(63):
        helper = EventFactory(producer=f"helper-{n}")
        assert rig.send(helper, "session_activity", {"epoch": 1}) == "applied"
    assert rig.send(EventFactory(producer="one-too-many"), "session_activity") == "applied", "one is forgotten"
    assert rig.send(agent, "session_activity") == "applied"
    assert len(rig.row_of(agent).producers) == 64


def test_a_session_remembers_its_last_sixteen_rejections() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for _ in range(20):
        assert rig.send(agent, "session_started") == "rejected illegal_transition"
    assert [rejection.offset for rejection in rig.row_of(agent).rejections] == list(range(8, 24))


def test_a_session_remembers_its_last_eight_clean_ups() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for _ in range(10):
        assert rig.advance(60_000, step_ms=5_000) == ["T06 inactive"]
        assert rig.send(agent, "session_resumed", snapshot_id=None) == "applied"
    assert len(rig.row_of(agent).cleanups) == 8
    assert rig.row_of(agent).epoch == 11


def test_an_unknown_key_in_the_wrong_partition_is_rejected() -> None:
    settings = SETTINGS._replace(partitions=4)
    agents = [EventFactory(f"s{n}") for n in range(12)]
    homes = {partition_of(agent.key.encoded(), 4) for agent in agents}
    assert homes == {0, 1, 2, 3}
    for agent in agents:
        rig = OracleRig(settings, partition=2)
        at_home = partition_of(agent.key.encoded(), 4) == 2
        assert rig.send(agent, "session_created") == ("applied" if at_home else "rejected wrong_partition")


@pytest.mark.parametrize("event_type", ["session_created", "session_activity", "heartbeat"])
def test_an_event_of_a_foreign_tenant_changes_nothing_and_is_reported(event_type: str) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    before = rig.row_of(agent)
    assert rig.send(agent, event_type, {"tenant_id": "evil"}) == "rejected foreign_tenant"
    assert rig.outcomes[-1].records_on("rejected")[0][1].security
    after = rig.row_of(agent)
    assert after._replace(audit_seq=0, rejections=()) == before._replace(audit_seq=0)


def test_the_oracles_comparison_can_fail() -> None:
    agent = EventFactory()
    key, value = agent.key.encoded(), agent.event_bytes("session_created")
    entry = LogEntry(0, 0, 1_000, key, value)
    oracle = replay_log([entry], partitions=1)
    rig = OracleRig()
    rig.at = 1_000
    rig.append(key, value)
    ((_, right),) = rig.outcomes[0].records_on("audit")
    assert find_differences(oracle, [right._asdict()], [], []) == []
    assert find_differences(oracle, [], [], []) == ["0 audit lines instead of 1"]
    assert len(find_differences(oracle, [right._replace(to_state="Active")._asdict()], [])) == 1
    assert find_differences(oracle, [right._asdict()] * 2, []) != []
    rejection = {"source_partition": 0, "source_offset": 0, "reason": "late"}
    assert find_differences(oracle, [right._asdict()], [rejection]) == ["record (0, 0): rejected late, expected None"]
    assert find_differences(oracle, [right._asdict()], [], [{"cleanup_id": "x", "actions": []}]) != []
    assert find_differences(Oracle(1), [], [], []) == []


def test_the_same_session_id_of_two_tenants_is_two_sessions() -> None:
    rig = OracleRig()
    session = derived_id("shared")
    for tenant in ("acme", "zeta"):
        agent = EventFactory(tenant=tenant)
        agent.key = SessionKey(tenant, session)
        assert rig.send(agent, "session_created") == "applied"
    assert len(rig.fold.rows) == 2
