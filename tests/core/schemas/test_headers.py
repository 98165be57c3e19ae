"""Headers: CloudEvents and trace context, as other libraries read them."""

from datetime import UTC, datetime, timedelta

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.codec import Decoder, Event, encode_event
from sessionary.schemas.events import StateUpdated
from sessionary.schemas.headers import event_headers, headers_beyond_envelope
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.types import Envelope
from tests.support.values import example


def test_the_cloudevents_library_reads_our_headers() -> None:
    occurred = datetime(2026, 3, 1, 12, 30, 15, 123456, UTC)
    micros = (occurred - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    key = SessionKey("acme", "0198f1c2-7d9a-7000-8000-000000000001")
    envelope = example(Envelope)._replace(
        event_id="7f8b2f2e-4c1b-4b60-9a55-0a2f2bb7a001",
        event_type="state_updated",
        tenant_id=key.tenant_id,
        session_id=key.session_id,
        service_id="billing",
        occurred_at=micros,
    )
    event = Event(envelope, StateUpdated(1, 2, "{}"))
    headers = event_headers(envelope, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert len(dict(headers)) == len(headers)
    message = KafkaMessage(dict(headers), key.encoded(), encode_event(event))
    read = from_binary(message, JSONFormat())
    assert read.get_specversion() == "1.0"
    assert read.get_id() == envelope.event_id
    assert read.get_source() == "/acme/billing"
    assert read.get_type() == "sessionary.state_updated"
    assert read.get_subject() == key.session_id
    assert read.get_time() == occurred
    assert read.get_datacontenttype() == "application/avro"
    data = read.get_data()
    assert isinstance(data, bytes)
    assert Decoder().decode_event(data) == event


@given(st.integers(-60_000_000_000_000_000, 250_000_000_000_000_000) | st.sampled_from([0, -1, 999_999, 1_000_000]))
def test_the_time_of_an_event_is_exact_to_the_microsecond(occurred_at: int) -> None:
    exact = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=occurred_at)
    headers = dict(event_headers(example(Envelope)._replace(occurred_at=occurred_at)))
    assert headers["ce_time"] == exact.isoformat().encode()


def test_headers_that_repeat_the_envelope_exactly_are_left_out() -> None:
    envelope = example(Envelope)._replace(occurred_at=1_790_000_000_000_001)
    own = event_headers(envelope)
    more: list[tuple[str, bytes | None]] = [("traceparent", b"00-1-2-01"), ("x", None)]
    assert list(headers_beyond_envelope(envelope, own)) == []
    assert list(headers_beyond_envelope(envelope, [*own, *more])) == more
    for place, (name, value) in enumerate(own):
        other: list[tuple[str, bytes | None]] = [*own[:place], (name, value + b"!"), *own[place + 1 :]]
        for headers in (other, [*other, *more], [*own[:place], *own[place + 1 :]]):
            assert headers_beyond_envelope(envelope, headers) == headers
    assert headers_beyond_envelope(envelope, [*more, *own]) == [*more, *own]
    assert headers_beyond_envelope(envelope._replace(occurred_at=1 << 62), own) == own


@pytest.mark.parametrize("traceparent", [None, "", "00-xyz", "00-" + "A" * 32 + "-" + "b" * 16 + "-01", "a\r\nb"])
def test_a_malformed_traceparent_is_left_out(traceparent: str | None) -> None:
    names = [name for name, _ in event_headers(example(Envelope)._replace(occurred_at=0), traceparent)]
    assert "traceparent" not in names
    assert "ce_id" in names
