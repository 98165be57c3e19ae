"""Sessions that ask for their tenant's quota: what they tell, and what verdicts come to."""

from typing import Any

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import quota_key
from sessionary.schemas.limits import SESSION_WAIT_MS
from sessionary.schemas.records import QuotaNotice, QuotaVerdict
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.topics import TopicNames
from sessionary.schemas.types import Limits, Rejection
from sessionary.stream_processors.core.session.row_size import estimate_row_bytes
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.oracle_rig import FIRST_POSITION, OracleRig
from tests.support.event_factory import EventFactory, snapshot

POSITION = FIRST_POSITION._replace(rules=NEWEST_RULES._replace(session_quotas=True))
BUDGET_MS = 60_000  # of inactivity, by default
INIT_MS = 15_000


class WaitingRig(OracleRig):
    """One session by rules with quotas of sessions; the oracle judges everything too."""

    def __init__(self, **created: Any) -> None:
        super().__init__(position=POSITION)
        self.agent = EventFactory()
        self.asked = self.create(self.agent, **created)

    def create(self, agent: EventFactory, **created: Any) -> int:
        """Create a session; return the offset that names its claim."""
        asked = self.next_offset
        assert self.send(agent, "session_created", **created) == "applied"
        return asked

    def decide(self, *, granted: bool = True, offset: int | None = None, run_id: str = "") -> str:
        offset = self.asked if offset is None else offset
        verdict = QuotaVerdict("live_sessions", run_id, offset, granted, 2, "q1")
        return self.append(self.agent.key.encoded(), encode_record(verdict))

    def notices(self, offset: int | None = None) -> list[str]:
        """Return what the quotas were just reported."""
        reported = [record for _, record in self.outcomes[-1].records_on("quotas")]
        wanted = "live_sessions", self.agent.key.session_id, "", self.asked if offset is None else offset
        assert all((one.quota, one.session_id, one.run_id, one.offset) == wanted for one in reported)
        return [one.step for one in reported]

    def begin(self) -> list[str]:
        """Go from creation to Active; return the verdicts."""
        for phase in ("validating", "connecting"):
            assert self.send(self.agent, "session_phase_changed", phase=phase) == "applied"
        return [self.send(self.agent, "session_started")]

    @property
    def state(self) -> str:
        return self.row_of(self.agent).state


def test_without_quotas_of_sessions_a_session_asks_for_nothing() -> None:
    rig, agent = OracleRig(position=FIRST_POSITION._replace(rules=NEWEST_RULES._replace(quotas=True))), EventFactory()
    rig.start(agent)
    assert rig.row_of(agent).quota is None
    assert all(not outcome.records_on("quotas") for outcome in rig.outcomes)


def test_a_session_waits_until_it_is_granted_its_slot_and_releases_it_at_its_end() -> None:
    rig = WaitingRig()
    row, (created,) = rig.row_of(rig.agent), rig.last_audits()
    assert (row.state, row.reason_code) == ("Idle", "quota_requested")
    assert (created.transition, created.reason_code) == ("T01", "quota_requested")
    assert created.reason == "Session created: it waits for its tenant's quota"
    assert rig.notices() == ["requested"]
    assert rig.begin() == ["rejected quota_exceeded"]
    rig.at += 1_000
    assert rig.decide() == "tick"
    (admitted,) = rig.last_audits()
    assert (admitted.kind, admitted.event_type, admitted.reason_code) == ("quota", "session_admitted", "quota_granted")
    assert (admitted.from_state, admitted.to_state, admitted.user_id) == ("Idle", "Idle", "u1")
    assert rig.notices() == ["taken"]
    assert rig.send(rig.agent, "session_started") == "applied"
    assert rig.notices() == []
    moves: list[tuple[str, dict[str, Any]]] = [("session_paused", {"snapshot": snapshot("p")})]
    for event_type, fields in (*moves, ("session_resumed", {}), ("session_taken_over", {})):
        assert rig.send(rig.agent, event_type, **fields) == "applied"
        assert rig.notices() == []
    held = rig.row_of(rig.agent).quota
    assert held is not None
    assert (held.offset, held.granted) == (rig.asked, True)
    assert rig.send(rig.agent, "session_terminated", reason="closed") == "applied"
    assert rig.notices() == ["released"]
    assert rig.row_of(rig.agent).quota is None
    assert rig.advance(4_000_000, step_ms=4_000)[-1] == "T14 archived"
    assert rig.notices() == []


def test_a_notice_goes_to_the_partition_of_its_tenant() -> None:
    rig = WaitingRig()
    transaction = processor_job(ProcessorSettings(partitions=1)).transaction(0, rig.outcomes[-1], 0)
    (notice,) = transaction.elsewhere
    assert notice[:2] == (TopicNames.with_prefix("sessionary").quotas, b"acme/live_sessions")
    assert notice[1] == quota_key("acme", "live_sessions")


def test_a_verdict_counts_once_and_for_its_claim_only() -> None:
    rig = WaitingRig()
    for offset in (rig.asked - 1, rig.asked + 1):
        assert rig.decide(offset=offset) == "tick"
        assert rig.notices(offset) == ["released"]
    runs = QuotaVerdict("concurrent_runs", "", rig.asked, False, 2, "q1")
    rig.append(rig.agent.key.encoded(), encode_record(runs))
    assert rig.row_of(rig.agent).quota is not None
    rig.decide()
    before = rig.row_of(rig.agent)
    for granted in (True, False):
        assert rig.decide(granted=granted) == "tick"
        assert rig.row_of(rig.agent) == before
        assert (rig.notices(), rig.last_audits()) == (["taken"], [])
    assert rig.begin() == ["applied"]
    assert rig.decide(granted=False) == "tick"
    assert rig.state == "Active"
    assert rig.append(EventFactory("unknown").key.encoded(), encode_record(runs)) == "tick"


def test_a_repeated_verdict_on_a_session_that_is_gone_releases_its_slot() -> None:
    rig = WaitingRig()
    rig.decide()
    assert rig.begin() == ["applied"]
    assert rig.send(rig.agent, "session_terminated", reason="closed") == "applied"
    for _ in range(2):  # in Terminated, and archived
        assert rig.decide() == "tick"
        assert (rig.notices(), rig.last_audits()) == (["released"], [])
        rig.advance(400_000, step_ms=4_000)
    assert rig.agent.key.encoded() not in rig.oracle.rows
    unknown = EventFactory("unknown").key
    held = QuotaVerdict("live_sessions", "", 7, True, 2, "q1")
    assert rig.append(unknown.encoded(), encode_record(held)) == "tick"
    ((_, answer),) = rig.outcomes[-1].records_on("quotas")
    assert answer == QuotaNotice("live_sessions", "released", *unknown, "", 7)


def test_a_rejected_session_ends_with_its_record_and_reason() -> None:
    rig = WaitingRig()
    claim = rig.row_of(rig.agent).quota
    assert claim is not None
    assert rig.send(rig.agent, "session_started") == "rejected phase_order"
    assert rig.decide(granted=False) == "tick"
    row, (ended,) = rig.row_of(rig.agent), rig.last_audits()
    assert (row.state, row.reason_code, row.quota) == ("Terminated", "quota_exceeded", None)
    assert (ended.transition, ended.event_type, ended.reason_code) == ("T03", "session_start_failed", "quota_exceeded")
    assert ended.reason == "Session rejected: the limit of live_sessions of tenant acme is 2"
    assert ended.user_id == "u1"
    assert rig.notices() == ["released"]
    rejections = row.rejections
    assert rejections[0] == Rejection(rig.asked, "quota_exceeded", claim.event_id)
    assert [one.offset for one in rejections] == [rig.asked, rig.asked + 1], "they stay in the order of the log"
    assert rig.decide() == "tick"
    assert rig.state == "Terminated"


def test_a_waiting_session_ends_in_any_way_and_releases_its_claim() -> None:
    rig = WaitingRig()
    assert rig.send(rig.agent, "session_start_failed", reason="invalid_config") == "applied"
    assert rig.notices() == ["released"]
    assert rig.decide() == "tick"
    assert rig.state == "Terminated"


def test_a_waiting_session_lives_by_beats_and_ends_in_silence() -> None:
    rig = WaitingRig()
    for _ in range(20):
        assert rig.advance(INIT_MS + 5_000) == [], "its time to start does not run while it waits"
        assert rig.send(rig.agent, "heartbeat") == "applied"
    assert rig.advance(BUDGET_MS - 1) == []
    assert rig.advance(1) == ["T03 inactive"]
    (ended,) = rig.last_audits()
    assert ended.reason == "Nothing was heard for 60s while it waited for its tenant's quota"
    assert rig.notices() == ["released"]


def test_only_its_owner_keeps_a_waiting_session_alive() -> None:
    rig = WaitingRig()
    assert rig.advance(BUDGET_MS - 1) == []
    assert rig.send(rig.agent, "heartbeat", {"service_id": "other"}) == "applied"
    assert rig.advance(1) == ["T03 inactive"]


def test_silence_is_measured_from_the_end_of_an_outage() -> None:
    rig = WaitingRig()
    rig.at += 10 * BUDGET_MS
    rig.tick()
    assert rig.advance(BUDGET_MS - 1) == []
    assert rig.advance(1) == ["T03 inactive"]


def test_a_session_that_waits_for_a_day_ends_although_it_beats() -> None:
    rig = WaitingRig(limits=Limits(model_ms=200_000_000, override=True))
    rig.at += SESSION_WAIT_MS - 60_000
    assert rig.send(rig.agent, "heartbeat") == "applied"
    assert rig.advance(59_999) == []
    assert rig.advance(1) == ["T03 quota_timeout"]
    assert rig.last_audits()[0].reason == "Not admitted by its tenant's quota within 86400s"
    assert rig.notices() == ["released"]


@pytest.mark.parametrize("waited_ms", [0, 45_000])
def test_an_admitted_session_has_its_whole_time_to_start(waited_ms: int) -> None:
    rig = WaitingRig()
    assert rig.advance(waited_ms) == []
    rig.decide()
    assert rig.advance(INIT_MS - 1) == []
    assert rig.advance(1) == ["T03 init_timeout"]
    assert rig.notices() == ["released"]


def test_a_session_keeps_its_claim_if_another_service_takes_it_over_while_it_waits() -> None:
    rig = WaitingRig()
    rig.advance(45_000)
    other = EventFactory(service="other", producer="p9")
    other.seq, other.epoch = 0, 1
    assert rig.send(other, "session_taken_over") == "applied"
    claim = rig.row_of(rig.agent).quota
    assert claim is not None
    assert (claim.offset, claim.granted) == (rig.asked, False)
    rig.decide()
    assert rig.notices() == ["taken"]


def test_a_repaired_clock_ends_no_waiting_session() -> None:
    rig = WaitingRig()
    rig.advance(50_000)
    rig.at -= 3_000_000
    rig.set_clock()
    assert rig.advance(BUDGET_MS - 50_000, step_ms=1_000) == []
    assert rig.decide() == "tick"
    assert rig.notices() == ["taken"]


def test_a_full_row_knows_the_text_of_its_claim() -> None:
    rig = WaitingRig()
    row = rig.row_of(rig.agent)
    assert row.quota is not None
    longer = row._replace(quota=row.quota._replace(event_id=row.quota.event_id + "x" * 100))
    assert estimate_row_bytes(longer) == estimate_row_bytes(row) + 100


def test_a_notice_names_no_run() -> None:
    rig = WaitingRig()
    ((key, notice),) = rig.outcomes[-1].records_on("quotas")
    assert key == b"acme/live_sessions"
    assert notice == QuotaNotice("live_sessions", "requested", "acme", rig.agent.key.session_id, "", rig.asked)
