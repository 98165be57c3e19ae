"""Sessions beyond their tenant's quota, with a real broker, a processor and a worker of quotas."""

import threading
from pathlib import Path

import pytest

from sessionary.producers import QuotaExceeded, Session, SessionClient
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.pipeline_rig import TENANT
from tests.integration.test_quotas import QuotaRig
from tests.support.processes import Processes
from tests.support.reading import read_records
from tests.support.waiting import wait_until

LIMIT = 2


class StartingSession:
    """A session that is started in a thread, because it has to wait."""

    def __init__(self, client: SessionClient) -> None:
        self.session = client.create(user_id="u3")
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._start, daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            self.session.start()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


def changes_of(kafka: KafkaSettings, session: str) -> list[tuple[str, str | None, str]]:
    """Return the audit records of a session that are no rejections: kind, transition and reason."""
    reported = [one for one in read_records(kafka, kafka.topics.audit) if isinstance(one, AuditRecord)]
    return [(one.kind, one.transition, one.reason_code) for one in reported if one.session_id == session]


def state_of(rig: QuotaRig, session: Session) -> tuple[str, bool]:
    found = rig.pipeline.ask(session.session_id)
    return found["state"], found["awaits_quota"]


def test_a_session_over_the_limit_waits_through_kills_until_a_slot_is_free(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = QuotaRig(kafka, processes, tmp_path, "queue", sessions=LIMIT)
    with rig.client() as client:
        first, second = client.session(user_id="u1"), client.session(user_id="u2")
        third = StartingSession(client)
        wait_until(lambda: rig.claims() == {"taken": LIMIT, "waiting": 1}, 120, "the table's count")
        shown = ('session_claims{state="taken"} 2.0', 'session_claims{state="waiting"} 1.0')
        wait_until(lambda: all(line in rig.metrics_page() for line in shown), 120, "the metrics to tell of them")
        rig.restart_all()
        assert rig.claims() == {"taken": LIMIT, "waiting": 1}
        assert state_of(rig, third.session) == ("Idle", True)
        assert not third.is_over
        rig.quotas.kill()
        first.close()
        wait_until(lambda: state_of(rig, first) == ("Terminated", False), 120, "the first session to end")
        assert state_of(rig, third.session) == ("Idle", True)
        rig.quotas = rig.start_quotas()
        wait_until(lambda: third.is_over, 120, "the third session to begin")
        assert third.error is None
        wait_until(lambda: state_of(rig, third.session) == ("Active", False), 120, "it to be Active")
        wait_until(lambda: rig.claims() == {"taken": LIMIT}, 120, "no slot that leaked")
        second.close()
        third.session.close()
        wait_until(lambda: rig.claims() == {}, 120, "all slots to be free")
    assert changes_of(kafka, third.session.session_id) == [
        *(("transition", "T01", "quota_requested"), ("quota", None, "quota_granted")),
        *(("transition", "T02", "started"), ("transition", "T13", "closed")),
    ]


def test_a_session_over_the_limit_is_rejected_with_its_record_and_reason(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = QuotaRig(kafka, processes, tmp_path, "reject", clickhouse, sessions=LIMIT)
    rig.pipeline.start_sinks(("audit", "history", "batches"))
    with rig.client() as client:
        live = [client.session(user_id="u1") for _ in range(LIMIT)]
        with pytest.raises(QuotaExceeded) as raised:
            client.session(user_id="u3")
        error = raised.value
        assert (error.limit, error.tenant_id, error.run_id, error.waited_s) == ("live_sessions", TENANT, None, None)
        rig.restart_all()
        wait_until(lambda: rig.claims() == {"taken": LIMIT}, 120, "the rejected claim to be gone")
        found = rig.pipeline.ask(f"{error.session_id}")
        assert (found["state"], found["reason_code"]) == ("Terminated", "quota_exceeded")
        assert [one["reason"] for one in found["rejections"]] == ["quota_exceeded"]
        assert changes_of(kafka, f"{error.session_id}")[-1] == ("transition", "T03", "quota_exceeded")
        rig.pipeline.wait_landed(kinds=("audit", "history"))
        query = "SELECT session_id, reason_code FROM {db}.audit WHERE reason_code = 'quota_exceeded'"
        assert rig.pipeline.sql(query) == [[error.session_id, "quota_exceeded"]]
        for session in live:
            session.close()


def test_a_waiting_session_is_reported_in_clickhouse(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = QuotaRig(kafka, processes, tmp_path, "queue", clickhouse, sessions=1)
    rig.pipeline.start_sinks(("audit", "history", "batches"))
    with rig.client() as client:
        first = client.session(user_id="u1")
        second = StartingSession(client)
        wait_until(lambda: rig.claims()["waiting"] == 1, 120, "the second session to wait")
        rig.pipeline.wait_landed(kinds=("audit", "history"))
        waiting = "SELECT tenant_id, sessions, oldest_session_id FROM {db}.v_waiting_sessions"
        assert rig.pipeline.sql(waiting) == [[TENANT, "1", second.session.session_id]]
        first.close()
        wait_until(lambda: second.is_over, 120, "the second session to begin")
        rig.pipeline.wait_landed(kinds=("audit", "history"))
        assert rig.pipeline.sql(waiting) == []
        second.session.close()
