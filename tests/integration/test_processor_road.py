"""One worker: every record folded once, every output in its place, also after restarts."""

import functools
import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.local.ports import free_port
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.events.session import SessionActivity, SessionTerminated
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Limits
from sessionary.stream_processors.core_build import core_build
from tests.integration.processor_load import (
    Agent,
    BackgroundLoad,
    OutgoingRecord,
    Sender,
    check_everything,
    count_judged,
    start_processor,
    wait_judged,
)
from tests.support import Processes, read_records, wait_until

# Silent sessions end within the test: 1.5 s of inactivity, then a short grace, release and archive.
SHORT = Limits(
    init_ms=5_000,
    model_ms=500,
    tool_ms=500,
    network_ms=500,
    idle_ms=None,
    attached_run_ms=None,
    max_duration_ms=None,
    grace_ms=500,
    hold_ms=None,
    recovery_ms=None,
    archive_delay_ms=300,
    release_limit_ms=500,
    context_limit_bytes=None,
    override=True,
)

# Without an event for an hour they are still Active, however slow the machine is.
LASTING = Limits(model_ms=3_600_000, override=True)


def test_events_become_audit_records_exactly_once(kafka: KafkaSettings, processes: Processes) -> None:
    """The worker also tells which core it runs."""
    port, tokens = free_port(), {"op": {"principal": "on-call", "roles": ["operator"]}}
    worker = start_processor(processes, kafka, "w1", api_port=str(port), api_tokens=json.dumps(tokens))
    sender, agents = Sender(kafka), [Agent() for _ in range(20)]
    for agent in agents:
        sender.send(*agent.start(LASTING), agent.work(), agent.event(SessionActivity("again", None), seq=2))
    stranger = Agent("other")
    sender.send(stranger.work())  # it was never created
    sender.send(agents[0].event(SessionActivity("x", None), tenant_id="other"))
    sender.send(OutgoingRecord(agents[1].key.encoded(), b"no event"), OutgoingRecord(b"no key", b"no event"))
    sender.send(*(agent.event(SessionTerminated("closed", None, None)) for agent in agents[:5]))
    places = sender.flush()
    wait_judged(kafka, len(places))
    check_core(port, worker.log)
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    assert worker.exit_code == 0
    audits = check_everything(kafka)
    kinds = Counter(audit.kind for audit in audits)
    assert kinds["transition"] == 20 * 2 + 5  # created, started; closed
    assert Counter(audit.reason_code for audit in audits if audit.kind == "rejection") == {
        "unknown_session": 1,
        "producer_conflict": len(agents),  # a number that was given to another event before
        "foreign_tenant": 1,
        "undecodable": 1,
        "bad_key": 1,
    }


def check_core(port: int, log: Path) -> None:
    """Assert that a worker tells the core that it runs to operators and in its log."""
    control_url = f"http://127.0.0.1:{port}"
    client = ControlApiClient(OperatorSettings.model_validate({"control_url": control_url, "operator_token": "op"}))

    def reported() -> list[object]:
        try:
            return [found["core"] for found in client.list_rules()["workers"]]
        except SessionaryError:  # the worker does not serve yet
            return []

    def written() -> list[object]:
        lines = log.read_text("utf-8").splitlines()
        return [json.loads(line)["core"] for line in lines if "processor is ready" in line]

    wait_until(reported, 120, "an answer")
    assert reported() == [core_build()]
    wait_until(written, 120, "the line in the log")
    assert set(written()) == {core_build()}


def test_deadlines_fire_without_any_event(kafka: KafkaSettings, processes: Processes) -> None:
    worker = start_processor(processes, kafka, "w1")
    sender, agents = Sender(kafka), [Agent() for _ in range(10)]
    for agent in agents:
        sender.send(*agent.start(SHORT))
    wait_judged(kafka, len(sender.flush()))

    wait_until(lambda: count_transitions(kafka)["T14"] == 10, 20, "all sessions archived", pause_s=0.3)
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    audits = check_everything(kafka)
    transitions = Counter(audit.transition for audit in audits if audit.kind == "transition")
    assert transitions == dict.fromkeys(("T01", "T02", "T06", "T08", "T14"), 10)
    late_ms = [(audit.fired_at - audit.due_at) // 1_000 for audit in audits if audit.fired_at and audit.due_at]
    assert min(late_ms) >= 0
    # Ticks are due each second; a busy machine sends them later. The log has no other record.
    assert sorted(late_ms)[len(late_ms) // 2] < 15_000


def _judged_over(kafka: KafkaSettings, records: int) -> bool:
    return count_judged(kafka) > records


def count_transitions(kafka: KafkaSettings) -> Counter[str | None]:
    return Counter(
        record.transition for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)
    )


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_kill_9_under_load_loses_and_doubles_nothing(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path, store: str
) -> None:
    more = {"store": store, "state_dir": str(tmp_path)}
    worker = start_processor(processes, kafka, "w1", **more)
    with BackgroundLoad(kafka, sessions=60, rate=1_000, seed=7, limits=SHORT) as load:
        for enough in (1_500, 4_000):
            wait_until(functools.partial(_judged_over, kafka, enough), 40, "work under way", pause_s=0.1)
            worker.kill()
            worker = start_processor(processes, kafka, "w1", **more)
    wait_judged(kafka, load.sent)
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    check_everything(kafka)


def test_a_wiped_worker_rebuilds_its_state_from_the_changelog(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    sender, agents = Sender(kafka), [Agent() for _ in range(30)]
    for store in ("rocksdb", "rocksdb", "memory"):
        worker = start_processor(processes, kafka, "w1", store=store, state_dir=str(tmp_path / f"{len(sender.places)}"))
        for agent in agents:
            sender.send(*([agent.work()] if agent.seq else agent.start(LASTING)))
        wait_judged(kafka, len(sender.flush()))
        worker.signal(signal.SIGTERM)
        assert worker.wait(180)
    audits = check_everything(kafka)
    # No event met an unknown session, none a gap.
    assert {audit.kind for audit in audits} == {"transition", "limits_override"}
