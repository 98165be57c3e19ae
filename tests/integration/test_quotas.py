"""Runs beyond their tenant's quota, with a real broker, a processor and a worker of quotas."""

import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from pathlib import Path

import pytest

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.infra.settings import OperatorSettings
from sessionary.producers import QuotaExceeded, Run, Session, SessionClient
from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import SessionKey, partition_of
from sessionary.schemas.records import AuditRecord, TenantQuota
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.schemas.types import RuleSet
from tests.integration.pipeline_rig import COMMAND, TENANT, TOKEN, PipelineRig
from tests.integration.processor_load import begin_with
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.reading import read_records, read_topic
from tests.support.waiting import wait_until

LIMIT = 3
TOKENS = {TOKEN: TENANT, "op": {"principal": "on-call", "roles": ["operator"]}}


class QuotaRig:
    """A processor whose runs ask for quotas, a worker of quotas, and a client.

    `is_on`: without it nothing is turned on, and no worker of quotas runs yet. `sessions`: so many
    may be live; then sessions ask, and runs do not. `rules`: others than those.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        processes: Processes,
        folder: Path,
        over: str,
        clickhouse: ClickHouseSettings | None = None,
        *,
        is_on: bool = True,
        sessions: int | None = None,
        rules: RuleSet | None = None,
    ) -> None:
        of_sessions = sessions is not None
        asking = NEWEST_RULES._replace(quotas=is_on and not of_sessions, session_quotas=of_sessions)
        begin_with(kafka, rules or asking)
        self.kafka, self.folder, self._processes = kafka, folder, processes
        self.limits = folder / "quotas.json"
        slots = {"live_sessions": sessions} if of_sessions else {"concurrent_runs": LIMIT}
        self.limits.write_text(json.dumps({"tenants": {TENANT: {**slots, "over": over}}}))
        self.pipeline = PipelineRig(kafka, clickhouse, processes)
        self.processor = self.pipeline.start_processor(api_tokens=json.dumps(TOKENS))
        if is_on:
            self.quotas = self.start_quotas()

    def operator(self) -> ControlApiClient:
        fields = {"control_url": self.pipeline.control_url, "operator_token": "op"}
        return ControlApiClient(OperatorSettings.model_validate(fields))

    def start_quotas(self) -> Child:
        self.port = free_port()
        more = {"quotas_file": str(self.limits), "api_tokens": json.dumps(TOKENS), "instance": "q1"}
        env = environment(self.kafka, api_port=str(self.port), **more)
        return self._processes.run([COMMAND, "serve", "quotas"], env=env, name="quotas")

    def restart_all(self) -> None:
        """Kill both workers, without a word, and start others."""
        for child in (self.quotas, self.processor):
            child.kill()
        self.quotas = self.start_quotas()
        self.processor = self.pipeline.start_processor(api_tokens=json.dumps(TOKENS))

    @contextmanager
    def client(self) -> Iterator[SessionClient]:
        settings = self.pipeline.client_settings(self.folder).model_copy(update={"quotas": True, "quota_wait_s": 300.0})
        with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a1", settings=settings) as client:
            yield client

    def state(self, session: Session, run: Run) -> str | None:
        found = {one["run_id"]: one["state"] for one in self.pipeline.ask(f"{session.session_id}/runs")["runs"]}
        return found.get(run.run_id)

    def metrics_page(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def claims(self) -> Counter[str]:
        """Return the claims in the table of quotas, by state."""
        rows: dict[bytes | None, bytes | None] = {}
        for stored in read_topic(self.kafka, self.kafka.topics.quotas_changelog):
            rows[stored.key] = stored.value
        found = [Decoder().decode_record(value) for value in rows.values() if value is not None]
        return Counter(claim.state for row in found if isinstance(row, TenantQuota) for claim in row.claims)


def two_sessions(client: SessionClient, partitions: int) -> tuple[Session, Session]:
    """Return Active sessions on different partitions."""
    first = client.session(user_id="u1")

    def place_of(session: Session) -> int:
        return partition_of(SessionKey(TENANT, session.session_id).encoded(), partitions)

    while place_of(second := client.session(user_id="u1")) == place_of(first):
        second.close()
    return first, second


class EnteringRun:
    """A run that is entered in a thread, because it has to wait."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._enter, daemon=True)
        self._thread.start()

    def _enter(self) -> None:
        try:
            self.run.__enter__()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


def test_a_run_over_the_limit_waits_through_kills_until_a_slot_is_free(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = QuotaRig(kafka, processes, tmp_path, "queue")
    with rig.client() as client, ExitStack() as last:
        first, second = two_sessions(client, kafka.partitions)
        runs = [first.run("report", mode="detached"), first.run("report"), second.run("report", mode="detached")]
        own = copy_context()  # it ends before those that begin after it, and must not be the current run then
        own.run(runs[0].__enter__)
        for run in runs[1:]:
            last.enter_context(run)
        fourth = EnteringRun(second.run("report", mode="detached"))
        wait_until(lambda: rig.state(second, fourth.run) == "queued", 120, "the fourth run to wait")
        wait_until(lambda: rig.claims() == {"taken": LIMIT, "waiting": 1}, 120, "the table's count")
        shown = ('quota_claims{state="taken"} 3.0', 'quota_claims{state="waiting"} 1.0')
        wait_until(lambda: all(line in rig.metrics_page() for line in shown), 120, "the metrics to tell of them")
        rig.restart_all()
        assert rig.claims() == {"taken": LIMIT, "waiting": 1}
        assert rig.state(second, fourth.run) == "queued"
        assert not fourth.is_over
        rig.quotas.kill()
        own.run(runs[0].__exit__, None, None, None)
        wait_until(lambda: rig.state(first, runs[0]) is None, 120, "the first run to end")
        assert rig.state(second, fourth.run) == "queued"
        rig.quotas = rig.start_quotas()
        wait_until(lambda: fourth.is_over, 120, "the fourth run to begin")
        assert fourth.error is None
        wait_until(lambda: rig.claims() == {"taken": LIMIT}, 120, "no slot that leaked")
        fourth.run.__exit__(None, None, None)
        last.close()
        wait_until(lambda: rig.claims() == {}, 120, "all slots to be free")
    reported = [one for one in read_records(kafka, kafka.topics.audit) if isinstance(one, AuditRecord)]
    changes = [(one.from_run_state, one.to_run_state) for one in reported if one.run_id == fourth.run.run_id]
    assert changes == [(None, "queued"), ("queued", "started")]


def test_a_run_over_the_limit_is_rejected_with_its_record_and_reason(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = QuotaRig(kafka, processes, tmp_path, "reject")
    with rig.client() as client, ExitStack() as last:
        first, second = two_sessions(client, kafka.partitions)
        for session in (first, first, second):
            last.enter_context(session.run("report", mode="detached"))
        fourth = second.run("report")
        with pytest.raises(QuotaExceeded) as raised:
            fourth.__enter__()
        assert (raised.value.limit, raised.value.tenant_id) == ("concurrent_runs", TENANT)
        assert (raised.value.run_id, raised.value.waited_s) == (fourth.run_id, None)
        rig.restart_all()
        wait_until(lambda: rig.claims() == {"taken": LIMIT}, 120, "the rejected claim to be gone")
        assert rig.state(second, fourth) is None
    reported = [one for one in read_records(kafka, kafka.topics.audit) if isinstance(one, AuditRecord)]
    (rejected,) = (one for one in reported if one.to_run_state == "rejected")
    assert (rejected.run_id, rejected.event_type, rejected.reason_code) == (
        *(fourth.run_id, "run_rejected", "quota_exceeded"),
    )


def test_a_waiting_run_is_queued_in_clickhouse_and_a_rejected_one_is_rejected(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = QuotaRig(kafka, processes, tmp_path, "queue", clickhouse)
    rig.pipeline.start_sinks(("audit", "history", "batches"))
    with rig.client() as client, ExitStack() as last:
        first, second = two_sessions(client, kafka.partitions)
        for session in (first, first, second):
            last.enter_context(session.run("report", mode="detached"))
        waiting = EnteringRun(second.run("report", run_id="waits"))
        wait_until(lambda: rig.claims()["waiting"] == 1, 120, "the fourth run to wait")
        rig.pipeline.wait_landed(kinds=("audit", "history"))
        query = "SELECT run_id, status, reason_code FROM {db}.v_runs WHERE run_id = 'waits' OR status != 'running'"
        assert rig.pipeline.sql(query) == [["waits", "queued", "quota_requested"]]
        by_tenant = "SELECT tenant_id, runs, oldest_session_id, oldest_run_id FROM {db}.v_waiting_runs"
        assert rig.pipeline.sql(by_tenant) == [[TENANT, "1", second.session_id, "waits"]]
        rig.limits.write_text(json.dumps({"default": {"concurrent_runs": LIMIT, "over": "reject"}}))
        last.close()
        wait_until(lambda: waiting.is_over, 120, "the waiting run to begin")
        rig.limits.write_text(json.dumps({"default": {"concurrent_runs": 0, "over": "reject"}}))

        def rejected_id() -> str:
            try:
                with first.run("report"):
                    return ""
            except QuotaExceeded as error:
                return error.run_id or ""

        rejected = wait_until(rejected_id, 120, "a run to be rejected by the new limit")
        waiting.run.__exit__(None, None, None)
        rig.pipeline.wait_landed(kinds=("audit", "history"))
        states = {row[0]: row[1] for row in rig.pipeline.sql("SELECT run_id, status FROM {db}.v_runs")}
        assert (states["waits"], states[rejected]) == ("completed", "rejected")
        assert rig.pipeline.sql(by_tenant) == []


def test_quotas_begin_only_once_a_worker_of_the_role_runs(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = QuotaRig(kafka, processes, tmp_path, "queue", is_on=False)
    operator = rig.operator()

    def quotas_in_force() -> list[bool]:
        return [found["quotas"] for found in operator.list_rules()["partitions"]]

    with pytest.raises(Invalid, match=r"no worker of the role quotas runs, .* \(sessionary serve quotas\)$"):
        operator.activate_rules(NEWEST_RULES.version, quotas=True)
    assert quotas_in_force() == [False] * kafka.partitions
    worker = rig.start_quotas()
    wait_until(lambda: operator.list_rules()["quota_workers"] == 1, 120, "the worker to be in its group", pause_s=0.5)
    assert operator.activate_rules(NEWEST_RULES.version, quotas=True)["quota_workers"] == 1
    wait_until(lambda: quotas_in_force() == [True] * kafka.partitions, 120, "quotas in force", pause_s=0.5)
    worker.kill()
    wait_until(lambda: operator.list_rules()["quota_workers"] == 0, 120, "the killed worker to be gone", pause_s=0.5)
