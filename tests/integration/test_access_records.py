"""The audit records of callers of the control API, in ClickHouse."""

import json
import time
from pathlib import Path

from sessionary.producers import SessionClient
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.stream_processors.core.model import OutputCause
from sessionary.stream_processors.core.trail import ACCESS_N, Access, access_record
from tests.integration.pipeline_rig import TENANT, TOKEN, started_pipeline
from tests.integration.sink_rig import settings_for, sink_in_thread
from tests.integration.test_processor_api import get_known
from tests.integration.test_sinks_views import insert, selected
from tests.support import Processes, wait_until
from tests.support.sink_records import NOW_US, batch_record


def test_an_access_is_in_its_tenants_trail_and_breaks_no_numbering(tables: ClickHouseSettings) -> None:
    insert(
        tables,
        [
            batch_record(0, 1, first_offset=20, last_offset=20, applied=0, ticks=1, audited=3),
            batch_record(0, 2, first_offset=21, last_offset=21, applied=0, ticks=1, audited=1),
        ],
    )
    asked = [("acme", "ann", 1), ("acme", "bob", 1), ("zeta", "eve", 1), ("acme", "ann", 2)]
    lines = [
        access_record(
            Access(tenant, principal, "unknown_session", "requests: 1"),
            OutputCause(0, 19 + number, ACCESS_N + n, NOW_US // 1_000, number),
        )
        for n, (tenant, principal, number) in enumerate(asked)
    ]
    insert(tables, lines, "accesses")
    kept = (
        "SELECT tenant_id, actor, security FROM {db}.audit FINAL WHERE kind = 'access' ORDER BY source_offset, source_n"
    )
    assert [(row["tenant_id"], row["actor"]) for row in selected(tables, kept)] == [
        (tenant, principal) for tenant, principal, _ in asked
    ]
    assert selected(tables, "SELECT * FROM {db}.v_integrity WHERE fault != 'history_rows_missing'") == []
    assert selected(tables, "SELECT * FROM {db}.v_sessions") == []


def test_who_asks_for_ids_of_another_tenant_is_in_the_trail_once_a_minute(
    kafka: KafkaSettings, tables: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    tokens = {TOKEN: TENANT, "token-b": {"tenant": "other", "principal": "bob"}}
    pipeline = started_pipeline(kafka, processes, tables, api_tokens=json.dumps(tokens))
    settings = pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        session = client.session(user_id="u")
        task_id = session.start_task("model_training", timeout_s=120)
        work = session.run("report", run_id="r", mode="detached")
        work.__enter__()
        session.sync()
        work._leave_metadata()
        run_page, task_page = f"sessions/{session.session_id}/runs/r", f"tasks/{task_id}"
        reasons = {
            f"sessions/{session.session_id}": "unknown_session",
            run_page: "unknown_run",
            task_page: "unknown_task",
        }
        began_s = time.monotonic()
        for page, reason in reasons.items():
            assert get_known(f"{pipeline.control_url}/v1/{page}", TOKEN).status == 200
            answer = get_known(f"{pipeline.control_url}/v1/{page}", "token-b")
            assert (answer.status, answer.body["reason"]) == (404, reason), answer
        minutes = int((time.monotonic() - began_s) // 60)  # that passed: none, if the machine is not busy
        session.complete()
    found = "SELECT tenant_id, actor, reason_code FROM {db}.audit FINAL WHERE kind = 'access'"
    with sink_in_thread("audit", settings_for(kafka, tables)):
        wait_until(lambda: pipeline.sql(found) != [], 60, "the audit record", pause_s=0.5)
        pipeline.wait_landed(kinds=("audit",))
    rows = pipeline.sql(found)
    assert [row[:2] for row in rows] == [["other", "bob"]] * len(rows)
    assert 1 <= len(rows) <= 1 + minutes
