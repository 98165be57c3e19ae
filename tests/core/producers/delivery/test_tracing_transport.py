"""The span of each event that a client sends."""

import logging

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.delivery.tracing_transport import TracingTransport
from sessionary.producers.errors import QueueFull
from sessionary.producers.kafka_ports import kafka_ports
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.telemetry import role_traces
from sessionary.schemas.telemetry.trace_context import format_traceparent
from tests.support.spans import SpanRig

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class FailingTransport(InMemoryTransport):
    """Refuses each record, or loses it."""

    loses = False

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        if not self.loses:
            raise QueueFull("there is no room")
        assert on_receipt is not None
        on_receipt(Receipt(None, None, "_MSG_TIMED_OUT"))


def traced_client(memory: InMemoryTransport, spans: SpanRig | None) -> SessionClient:
    transport = TracingTransport(memory, "sessionary.events", None if spans is None else spans.tracer)
    return SessionClient(
        tenant_id="acme",
        service_id="billing",
        agent_id="a1",
        settings=ProducerSettings.from_env({}),
        ports=memory_ports(memory)._replace(transport=transport),
    )


def test_each_event_has_a_span_whose_context_is_in_its_header() -> None:
    spans, memory = SpanRig(), InMemoryTransport()
    with traced_client(memory, spans) as client, spans.tracer.start_as_current_span("work") as work:
        session = client.create(user_id="u1", state={}).start()
        session.activity("llm")
    records = memory.records()
    sent = [span for span in spans.ended if span.name == "send sessionary.events"]
    assert len(records) == len(sent) > 1
    assert [dict(record.headers)["traceparent"].decode() for record in records] == [
        format_traceparent(span.context) for span in sent
    ]
    last = sent[-1]
    assert last.kind is SpanKind.PRODUCER
    assert last.parent is not None
    assert last.parent.span_id == work.get_span_context().span_id
    assert not last.parent.is_remote  # a sampler may treat a remote parent differently
    attributes = dict(last.attributes or {})
    assert attributes[role_traces.CONVERSATION_ID] == session.session_id
    assert attributes[role_traces.MESSAGING_MESSAGE_ID] == records[-1].event_id
    assert attributes[role_traces.MESSAGING_KAFKA_OFFSET] == len(records) - 1


def test_events_from_a_template_have_their_own_headers_and_context() -> None:
    spans, memory = SpanRig(), InMemoryTransport()
    with traced_client(memory, spans) as client:
        session = client.create(user_id="u1", state={}).start()
        for _ in range(8):
            session.activity("llm")
    records = memory.records()
    sent = [span for span in spans.ended if span.name == "send sessionary.events"]
    reported = [dict(record.headers) for record in records]
    assert len(reported) == len(sent) > 8
    assert [headers["ce_id"].decode() for headers in reported] == [record.event_id for record in records]
    assert [headers["traceparent"].decode() for headers in reported] == [
        format_traceparent(span.context) for span in sent
    ]


def test_a_context_that_the_caller_names_is_the_parent() -> None:
    spans, memory = SpanRig(), InMemoryTransport()
    with traced_client(memory, spans) as client:
        client.create(user_id="u1", state={}).start().emit(SessionActivity("llm"), traceparent=TRACEPARENT)
    [span] = [span for span in spans.ended if span.parent is not None]
    assert span.parent is not None
    assert format_traceparent(span.parent) == TRACEPARENT
    assert [name for name, _ in memory.records()[-1].headers].count("traceparent") == 1


@pytest.mark.parametrize(("loses", "reason"), [(True, "_MSG_TIMED_OUT"), (False, "QueueFull")])
def test_an_event_that_is_lost_or_refused_ends_its_span_as_failed(loses: bool, reason: str) -> None:
    spans, memory = SpanRig(), FailingTransport()
    memory.loses = loses
    client = traced_client(memory, spans)
    if loses:
        client.create(user_id="u1", state={})
    else:
        with pytest.raises(QueueFull):
            client.create(user_id="u1", state={})
    span = spans.ended[0]
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})[role_traces.ERROR_TYPE] == reason


def test_without_an_sdk_records_stay_as_they_are() -> None:
    memory = InMemoryTransport()
    with traced_client(memory, None) as client:
        client.create(user_id="u1", state={}).start()
    assert [name for record in memory.records() for name, _ in record.headers if name == "traceparent"] == []


def test_a_client_is_traced_only_if_it_is_asked_to(tmp_path: object) -> None:
    for asked in (False, True):
        settings = ProducerSettings.from_env(
            {}, spool_dir=tmp_path, trace_events=asked, bootstrap_servers="127.0.0.1:1"
        )
        ports = kafka_ports(settings, "acme", "billing", "p1", lambda error: logging.info("%s", error))
        assert isinstance(ports.transport, TracingTransport) == asked
        ports.transport.close(0)
