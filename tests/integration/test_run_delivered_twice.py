"""Every event of a real run is delivered once more: nothing of what analysts see changes."""

from pathlib import Path

from confluent_kafka import Producer

from sessionary.producers import Session, SessionClient, tool
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.events import Heartbeat, RunRunning
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.schemas.types import Limits
from tests.integration.pipeline_rig import TENANT, PipelineRig
from tests.support.migrated_tables import make_tables
from tests.support.processes import Processes
from tests.support.reading import Stored, read_topic
from tests.support.waiting import wait_until

OWN_SEQ = 999  # what a client may say of an event's number, and is not believed
PAGES, PARTS = 12, 4
SEEN = (
    "SELECT * FROM {db}.v_runs",
    "SELECT * FROM {db}.v_steps ORDER BY name, attempt",
    "SELECT * FROM {db}.v_reserved_calls ORDER BY idem_key",
    "SELECT * FROM {db}.v_checkpoints ORDER BY number",
    "SELECT * FROM {db}.v_messages ORDER BY turn",
    "SELECT * FROM {db}.v_run_events ORDER BY source_partition, source_offset",
    "SELECT * FROM {db}.v_usage",
    "SELECT * FROM {db}.v_usage_by_tenant",
    "SELECT sum(calls), sum(retries), sum(failures) FROM {db}.v_calls_per_minute",
    "SELECT audit_seq, kind, event_type, source_offset FROM {db}.audit FINAL ORDER BY 4, 1",
)


@tool(effect="write")
def send_message(text: str) -> str:
    """Stand in for a service."""
    return f"sent {text}"


def work(session: Session) -> None:
    """Leave events of every kind that a run has, one of them with a number of the client's own."""
    with session.run("report", run_id="r", input="pages", plan=["read", "notify"]) as run:
        with session.llm("m-large") as call:
            call.tokens_in, call.tokens_out = 100, 10
        run.step("read", lambda: list(run.items(range(PAGES), name="pages")))
        session.message("user", "how far is it?")
        session.emit(RunRunning(0.0), run_seq=OWN_SEQ)
        for part in range(PARTS):
            run.report_progress(part + 1, PARTS, f"Step {part + 1}/{PARTS}")
        run.result = run.step("notify", send_message, "ann")
    session.complete()


def send_again(kafka: KafkaSettings, stored: list[Stored]) -> None:
    """Produce the same records to the same partitions, in their order."""
    producer = Producer(kafka.client_config())
    for record in stored:
        headers: list[tuple[str, str | bytes | None]] = [(name, value) for name, value in record.headers]
        producer.produce(kafka.topics.events, record.value, record.key, record.partition, headers=headers)
    assert producer.flush(120) == 0


def is_heartbeat(record: Stored) -> bool:
    event = Decoder().decode_event(record.value)
    return isinstance(event, Event) and isinstance(event.payload, Heartbeat)


def test_a_run_that_is_delivered_twice_is_seen_once(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    make_tables(clickhouse)
    pipeline = PipelineRig(kafka, clickhouse, processes)
    pipeline.start_processor()
    pipeline.start_sinks(("audit", "history", "rejected"))
    settings = pipeline.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        # Not archived before all is delivered again, however slow the machine is.
        session = client.session(user_id="u", limits=Limits(archive_delay_ms=3_600_000))
        work(session)
        client.flush(120)
    wait_until(lambda: pipeline.ask(session.session_id)["state"] == "Terminated", 30, "the session's end")
    pipeline.wait_landed()
    before = [pipeline.sql(sql) for sql in SEEN]
    assert all(before)
    key = session.core.emitter.key.encoded()
    stored = [record for record in read_topic(kafka, kafka.topics.events) if record.key == key]
    rows = "SELECT count() FROM {db}.history FINAL WHERE session_id != ''"
    assert pipeline.sql(rows) == [[f"{len(stored)}"]]

    # A heartbeat has no number by which it is known again.
    again = [record for record in stored if not is_heartbeat(record)]
    send_again(kafka, again)
    twice = [[f"{len(stored) + len(again)}"]]
    wait_until(lambda: pipeline.sql(rows) == twice, 60, "every record twice", pause_s=0.5)
    pipeline.wait_landed()
    for sql, seen in zip(SEEN, before, strict=True):
        assert pipeline.sql(sql) == seen, sql
    assert pipeline.sql("SELECT count() FROM {db}.rejected") == [["0"]]

    # The number that the client put there is kept, and is not the event's number in its run.
    said = f"SELECT DISTINCT event_id FROM {{db}}.history WHERE run_seq = {OWN_SEQ}"
    ((event_id,),) = pipeline.sql(said)
    numbers = pipeline.sql(
        f"SELECT seq, event_id = '{event_id}' FROM {{db}}.v_run_events WHERE run_id = 'r' ORDER BY 1"
    )
    assert [seq for seq, _ in numbers] == [f"{n}" for n in range(1, len(numbers) + 1)]
    assert [is_it for _, is_it in numbers].count("1") == 1

    # Its progress is the series that the run reported, from 0 to 1, each value once.
    reported = (
        "SELECT progress FROM {db}.v_run_events WHERE event_type = 'run_running' AND progress IS NOT NULL ORDER BY seq"
    )
    assert [float(value) for (value,) in pipeline.sql(reported)] == [part / PARTS for part in range(PARTS + 1)]
