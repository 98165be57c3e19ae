"""The logs of the roles on a real broker: JSON lines, and no secret in them."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.producers import SessionClient
from sessionary.schemas.ids import SessionKey, new_session_id
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.pipeline_rig import COMMAND, TENANT, TOKEN, PipelineRig, started_pipeline
from tests.integration.test_long_tasks import TaskRig, last_state
from tests.support.event_factory import EventFactory
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.waiting import wait_until

SECRET = "s3cret-of-a-payload"
WRONG_TOKEN = "s3cret-token-unknown"
# A task that fails with what it was given.
TASKS = """
from sessionary.producers.tasks.worker import task

@task("broken")
def fail(ctx, given):
    ctx.info(given["card"])
    raise ValueError(given["card"])
"""


def send_secrets(kafka: KafkaSettings) -> None:
    """Send records that are rejected, and some that no sink can store, each with the secret."""
    producer = Producer({**kafka.client_config(), "partitioner": "murmur2_random"})
    key = SessionKey(TENANT, new_session_id()).encoded()
    events = EventFactory(service="billing")
    for value in (
        SECRET.encode(),
        b"\xc3\x01" + bytes(8) + SECRET.encode(),
        events.event_bytes("llm_decision", output_text=SECRET),
        events.event_bytes("usage_recorded", model=SECRET, tokens_in=-5),
    ):
        producer.produce(kafka.topics.events, key=key, value=value)
    # One under a session's key, which its dead letter's line names, and two under no such key.
    other = SECRET.encode()
    for topic, named in ((kafka.topics.audit, key), (kafka.topics.rejected, other), (kafka.topics.batches, other)):
        producer.produce(topic, key=named, value=b"\xc3\x01" + SECRET.encode())
    assert producer.flush(120) == 0


def ask_with_token(url: str, token: str) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def log_lines(child: Child) -> list[dict[str, Any]]:
    return [json.loads(line) for line in child.log.read_text("utf-8").splitlines()]


def test_lines_are_json_with_their_fields_and_hold_no_payload_and_no_token(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, clickhouse, processes)
    sinks = pipeline.start_sinks()
    processor = pipeline.start_processor(log_level="DEBUG")
    with (
        SessionClient(
            tenant_id=TENANT, service_id="billing", agent_id="a1", settings=pipeline.client_settings(tmp_path)
        ) as client,
        client.session(user_id="u1", state={"card": SECRET}, data_classes=("financial",)) as session,
    ):
        session.activity("llm", SECRET)
        session.update_state({"card": f"{SECRET}-2"})
        url = f"{pipeline.control_url}/v1/sessions/{session.session_id}"
        assert client.flush(120) == 0
        assert ask_with_token(url, WRONG_TOKEN) == 401
        wait_until(lambda: ask_with_token(url, TOKEN) == 200, 30, "the session to be served")
    send_secrets(kafka)
    wait_until(lambda: "dead letter" in sinks[0].log.read_text("utf-8"), 60, "a dead letter")
    pipeline.wait_landed()
    processor.stop(180)
    for sink in sinks:
        sink.stop(180)

    for child, role in ((processor, "processor"), (sinks[1], "sink history")):
        lines = log_lines(child)
        assert {line["role"] for line in lines} == {role}
        assert all({"time", "level", "event"} <= line.keys() for line in lines)
        assert f"{role} is ready: {kafka.partitions} partitions" in [line["event"] for line in lines]
    opened = [line["partition"] for line in log_lines(processor) if "is open" in line["event"]]
    assert set(opened) == set(range(kafka.partitions))
    [letter] = [line for line in log_lines(sinks[0]) if "dead letter" in line["event"]]
    assert letter["level"] == "error"
    assert isinstance(letter["offset"], int)
    assert letter["error_class"] == "BadRow"
    assert {"tenant_id", "session_id"} <= letter.keys()
    for child in processes.started:
        text = child.log.read_text("utf-8")
        assert [secret for secret in (SECRET, WRONG_TOKEN, TOKEN) if secret in text] == [], child.log.name


def test_lines_of_a_task_worker_are_json_and_hold_no_payload_and_no_token(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = TaskRig(started_pipeline(kafka, processes), processes, tmp_path)
    (tmp_path / "app_tasks.py").write_text(TASKS)
    worker = rig.start_worker("worker-1", log_level="DEBUG")
    settings = rig.pipeline.client_settings(tmp_path)
    with (
        SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a1", settings=settings) as client,
        client.session(user_id="u1") as session,
    ):
        task_id = session.start_task("broken", {"card": SECRET}, timeout_s=120)
        assert last_state(client, task_id) == "failed"
        producer = Producer({**kafka.client_config(), "partitioner": "murmur2_random"})
        key = SessionKey(TENANT, session.session_id).encoded()
        producer.produce(kafka.topics.tasks, key=key, value=b"\xc3\x01" + bytes(8) + SECRET.encode())
        assert producer.flush(120) == 0
        stopped = f"{kafka.topics.tasks}, partition "
        wait_until(lambda: stopped in worker.log.read_text("utf-8"), 60, "the record that cannot be read")
    worker.stop(180)
    lines = log_lines(worker)
    assert {line["role"] for line in lines} == {"task worker"}
    assert {line["instance"] for line in lines} == {"worker-1"}
    assert all({"time", "level", "event"} <= line.keys() for line in lines)
    assert "tasks that are carried out: broken" in [line["event"] for line in lines]
    text = worker.log.read_text("utf-8")
    assert [secret for secret in (SECRET, TOKEN) if secret in text] == []


def test_lines_of_a_lag_exporter_are_json_and_hold_no_payload_and_no_password(
    kafka: KafkaSettings, processes: Processes
) -> None:
    send_secrets(kafka)
    away = {"clickhouse_url": f"http://127.0.0.1:{free_port()}", "clickhouse_password": WRONG_TOKEN}
    environ = environment(kafka, **away, log_level="DEBUG")
    exporter = processes.run(
        [COMMAND, "serve", "lag-exporter", "--port", str(free_port())], env=environ, name="lag-exporter"
    )
    reported = ("lag exporter is ready: ", "no key figures: ", "no bytes of the largest tenant: ")
    wait_until(lambda: all(text in exporter.log.read_text("utf-8") for text in reported), 180, "what it has to say")
    exporter.stop(180)
    lines = log_lines(exporter)
    assert {line["role"] for line in lines} == {"lag exporter"}
    assert all({"time", "level", "event"} <= line.keys() for line in lines)
    [ready] = [line for line in lines if line["event"].startswith(reported[0])]
    assert ready["partitions"] >= kafka.partitions
    for text in reported[1:]:
        [failed] = [line for line in lines if line["event"].startswith(text)]
        assert (failed["level"], failed["error_class"]) == ("warning", "Unavailable")
    text = exporter.log.read_text("utf-8")
    assert [secret for secret in (SECRET, WRONG_TOKEN) if secret in text] == []
