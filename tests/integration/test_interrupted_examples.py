"""Examples that are killed by SIGKILL and started again, on a real broker and a processor."""

import json
import uuid
from collections import Counter
from pathlib import Path

import pytest

from examples.research import agent as research
from examples.support import agent as support
from examples.trading import agent as trading
from sessionary.schemas.events import StepStarted
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.examples_rig import END_S, ExamplesRig, end_of
from tests.integration.pipeline_rig import started_pipeline
from tests.support import Processes, read_records, wait_until
from tests.support.shopping_list import ITEMS

ITEMS_JSON = json.dumps(ITEMS, separators=(",", ":"))
# Of each event: the process that sent it, its type, the version that it makes, the list in it.
LISTS = (
    ("plan", "session_created", r"\N", '{"shopping_list":[]}'),
    ("plan", "state_updated", "2", f'{{"shopping_list":{ITEMS_JSON}}}'),
    ("read", "step_succeeded", r"\N", ITEMS_JSON),
    ("clear", "state_updated", "3", '{"shopping_list":[]}'),
)
LIST_SQL = (
    "coalesce(nullIf(JSONExtractString(payload_json, 'state_json'), ''), "
    "nullIf(JSONExtractString(payload_json, 'output_json'), ''), "
    "JSONExtractString(payload_json, 'snapshot', 'state_json'))"
)


@pytest.fixture
def rig(kafka: KafkaSettings, processes: Processes, tmp_path: Path) -> ExamplesRig:
    return ExamplesRig(started_pipeline(kafka, processes), tmp_path)


def attempts(rig: ExamplesRig, output: str) -> Counter[str]:
    """Return how often each step began, in the session that an example printed."""
    # The spool of a killed process may send an event once more.
    payloads = {event.envelope.event_id: event.payload for event in rig.events(output)}.values()
    return Counter(payload.name for payload in payloads if isinstance(payload, StepStarted))


def audit_of(kafka: KafkaSettings, session_id: str) -> list[AuditRecord]:
    records = read_records(kafka, kafka.topics.audit)
    return [record for record in records if isinstance(record, AuditRecord) and record.session_id == session_id]


def test_examples_that_are_killed_go_on_where_they_were(rig: ExamplesRig, kafka: KafkaSettings, tmp_path: Path) -> None:
    trade = ("trading.agent", tmp_path / "orders", session_id := str(uuid.uuid4()))
    rig.kill_example("falls silent", *trade, 2)
    output = rig.run_example(*trade)
    orders = trading.Exchange(tmp_path / "orders").orders()
    assert [order["buy"] for order in orders] == ["BIRCH", "OAK"]
    assert output.splitlines()[-2:] == ["step execute_trades", "placed [1, 2]"]
    assert attempts(rig, output) == {**dict.fromkeys(trading.PLAN[:3], 1), "execute_trades": 2}
    trail = audit_of(kafka, session_id)
    assert [record.audit_seq for record in trail] == list(range(1, len(trail) + 1))
    assert {record.retention_class for record in trail} == {"sox_audit"}

    ticket = ("support.agent", "answer", str(uuid.uuid4()), "no network")
    with rig.start_example(*ticket, 0) as failing:
        failing.communicate(timeout=END_S)
    assert failing.returncode == 1
    seen = rig.run_example("support.agent", "watch", ticket[2])
    assert seen.splitlines()[-1] == "done classify gather_context to retry write_answer the model does not answer"
    rig.kill_example("the model is down", *ticket, 60)
    output = rig.run_example(*ticket)
    assert output.splitlines()[-1] == "answer no network: about network: restart the router"
    assert attempts(rig, output) == {**dict.fromkeys(support.PLAN[:2], 1), "write_answer": 3}

    topic = ("research.agent", tmp_path, str(uuid.uuid4()), "heat pumps")
    rig.kill_example("the model is down", *topic, "down")
    requests = research.Web(tmp_path / "requests.txt").requests()
    output = rig.run_example(*topic)
    assert output.splitlines()[-1] == "summary FINDING 1. AND FINDING 2."
    assert research.Web(tmp_path / "requests.txt").requests() == requests
    assert len(requests) == len(set(requests)) == 3
    assert attempts(rig, output) == {**dict.fromkeys(research.PLAN, 1), "analyze": 2}


def test_a_shopping_list_of_three_processes_is_in_clickhouse(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = ExamplesRig(started_pipeline(kafka, processes, clickhouse), tmp_path)
    rig.pipeline.start_sinks(["history"])
    session_id = str(uuid.uuid4())
    said = [rig.run_program("tests.support.shopping_list", step, session_id) for step in ("plan", "read", "clear")]
    assert said == ["", f"{' '.join(ITEMS)}\n", ""]
    sql = (
        f"SELECT agent_id, event_type, state_version, {LIST_SQL} FROM {{db}}.history FINAL "
        "WHERE event_type IN ('session_created', 'state_updated', 'step_succeeded') "
        f"AND session_id = '{session_id}' ORDER BY source_offset"
    )
    wait_until(lambda: len(rig.pipeline.sql(sql)) == len(LISTS), 30, "a row of each event of the list")
    assert [tuple(row) for row in rig.pipeline.sql(sql)] == list(LISTS)
    assert end_of(rig.events(f"session {session_id}")) == "completed"
