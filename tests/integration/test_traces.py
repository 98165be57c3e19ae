"""One event's trace through three processes: a client, a processor, a sink (history, audit)."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.pipeline_rig import TENANT, TOKEN, PipelineRig
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.waiting import wait_until

# A program of a user: it sets up an SDK, and works in a span of its own.
_AGENT = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
from sessionary.producers import SessionClient
with SessionClient(tenant_id=sys.argv[1], service_id="billing", agent_id="a1") as client:
    with trace.get_tracer("agent").start_as_current_span("work"):
        session = client.create(user_id="u1", state={}).start()
        session.activity("llm")
    client.flush(120)
    session.lifecycle.detach()
"""
# One request of a user: look the session up, call a tool, update the session, answer.
_REQUEST = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
from sessionary.producers import SessionClient, tool
span = trace.get_tracer("agent").start_as_current_span

@tool(effect="write")
def send_message(given):
    with span("run the tool"):
        return [given, "sent"]

with SessionClient(tenant_id=sys.argv[1], service_id="billing", agent_id="a1") as client:
    begun = client.session(user_id="u1", state={"step": 1})
    begun.sync()
    with span("handle the request"):
        with span("look up"):
            session = client.attach(begun.session_id)
        with session:
            with span("call"):
                sent = send_message(session.state)
            with span("update"):
                session.update_state({"step": 2, "sent": sent})
            with span("answer", attributes={"session.id": session.session_id, "sent": str(sent)}):
                pass
    client.flush(120)
"""
_TRACED = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "200"}


def ended_spans(log: Path) -> list[dict[str, Any]]:
    """Return the spans in a log, which has lines of other kinds too."""
    text, found = log.read_text("utf-8"), []
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find('{\n    "name"', at)) >= 0:
        try:
            span, at = decoder.raw_decode(text, at)
        except ValueError:
            break  # it is being written
        found.append(span)
    return found


def wait_for_span(log: Path, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a span in a log; no other one may be wanted."""

    def wanted() -> list[dict[str, Any]]:
        return [span for span in ended_spans(log) if is_wanted(span)]

    wait_until(wanted, 60, f"a span in {log.name}")
    [span] = wanted()
    return span


def test_one_event_is_one_trace_through_three_processes(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, clickhouse, processes)
    pipeline.start_sinks(())
    traced = environment(kafka, clickhouse, instance="s1") | _TRACED
    sink, audit_sink = (
        processes.run(
            [sys.executable, "-m", "sessionary.infra.cli", "serve", "sink", kind], env=traced, name=f"sink-{kind}"
        )
        for kind in ("history", "audit")
    )
    environ = environment(kafka, instance="w1", api_port=str(pipeline.api_port)) | _TRACED
    processor = processes.start("sessionary.stream_processors", env=environ, name="processor")
    wait_until(pipeline.is_ready, 60, "the processor to own its partitions")
    environ = environment(kafka, trace_events="true", spool_dir=str(tmp_path), close_timeout_s="120")
    agent = processes.run([sys.executable, "-c", _AGENT, TENANT], env=environ, name="agent")
    assert agent.wait(180)
    assert agent.exit_code == 0, agent.log.read_text("utf-8")

    work = wait_for_span(agent.log, lambda span: span["name"] == "work")
    send = wait_for_span(agent.log, lambda span: span["attributes"].get("sessionary.event.type") == "session_activity")
    place = [f"messaging.{name}" for name in ("destination.partition.id", "kafka.offset")]
    process = wait_for_span(processor.log, lambda span: places_of(span, place) == places_of(send, place))
    store = wait_for_span(sink.log, lambda span: send["context"]["span_id"] in linked_ids(span))
    created = wait_for_span(
        agent.log, lambda span: span["attributes"].get("sessionary.event.type") == "session_created"
    )
    audit = wait_for_span(audit_sink.log, lambda span: created["context"]["span_id"] in linked_ids(span))

    spans = (work, send, process, store, created, audit)
    assert {span["context"]["trace_id"] for span in spans} == {work["context"]["trace_id"]}
    assert audit["name"] == f"store {kafka.topics.audit}"
    events = kafka.topics.events
    assert [span["name"] for span in (send, process, store)] == [
        f"send {events}",
        f"process {events}",
        f"store {events}",
    ]
    assert send["parent_id"] == work["context"]["span_id"]
    assert process["parent_id"] == send["context"]["span_id"]
    assert store["parent_id"] == linked_ids(store)[0]
    assert process["attributes"]["sessionary.outcome"] == "applied"
    assert [span["resource"]["attributes"]["service.name"] for span in (process, store)] == [
        "sessionary-processor",
        "sessionary-sink-history",
    ]


def test_the_stages_of_a_call_are_one_trace_in_their_order(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    tokens = json.dumps({TOKEN: TENANT})
    environ = environment(kafka, instance="w1", api_port=str(pipeline.api_port), api_tokens=tokens) | _TRACED
    processor = processes.start("sessionary.stream_processors", env=environ, name="processor")
    wait_until(pipeline.is_ready, 60, "the processor to own its partitions")
    own = {"trace_events": "true", "spool_dir": str(tmp_path), "api_token": TOKEN}
    own |= {"verdict_timeout_s": "120", "close_timeout_s": "120"}
    environ = environment(kafka, **own, control_url=pipeline.control_url)
    agent = processes.run([sys.executable, "-c", _REQUEST, TENANT], env=environ, name="agent")
    assert agent.wait(180)
    assert agent.exit_code == 0, agent.log.read_text("utf-8")

    def named(name: str) -> dict[str, Any]:
        return wait_for_span(agent.log, lambda span: span["name"] == name)

    def sent(event_type: str) -> dict[str, Any]:
        return wait_for_span(agent.log, lambda span: span["attributes"].get("sessionary.event.type") == event_type)

    request, looked_up, answer = named("handle the request"), named("look up"), named("answer")
    reserved, granted_tool, done = sent("tool_call_started"), named("run the tool"), sent("tool_call_succeeded")
    updated, update = sent("state_updated"), named("update")
    judged = wait_for_span(processor.log, lambda span: span["parent_id"] == reserved["context"]["span_id"])
    stages = (looked_up, reserved, judged, granted_tool, done, updated, answer)
    assert {span["context"]["trace_id"] for span in stages} == {request["context"]["trace_id"]}
    # Each begins once the one before has ended: a send ends when the broker has acknowledged it.
    assert reserved["start_time"] <= judged["start_time"]
    for before, after in (
        (looked_up, reserved),
        (judged, granted_tool),
        (reserved, granted_tool),
        (granted_tool, done),
        (done, updated),
        (updated, answer),
    ):
        assert before["end_time"] <= after["start_time"], (before["name"], after["name"])
    assert updated["end_time"] <= update["end_time"], "the update was confirmed before the broker had it"
    # The tool was given the stored state, and the answer names its session.
    assert answer["attributes"]["session.id"] == reserved["attributes"]["gen_ai.conversation.id"]
    assert answer["attributes"]["sent"] == "[{'step': 1}, 'sent']"


def places_of(span: dict[str, Any], names: list[str]) -> list[Any]:
    return [span["attributes"].get(name) for name in names]


def linked_ids(span: dict[str, Any]) -> list[str]:
    return [link["context"]["span_id"] for link in span["links"]]
