"""The outside of a client in production: Kafka and the control API."""

from collections.abc import Callable

from sessionary.producers.control.cleanup_consumer import KafkaCleanupConsumer
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.delivery.direct_transport import DirectTransport
from sessionary.producers.delivery.spool_transport import SpoolTransport
from sessionary.producers.ports import OnError, Ports, Transport
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.errors import SettingsError


def kafka_ports(
    settings: ProducerSettings, tenant_id: str, service_id: str, producer_id: str, on_error: OnError
) -> Ports:
    """Return the ports of a client with these settings. Raises `SettingsError`."""
    spooling = settings.delivery_policy == "spool"
    trace, control = _tracing(settings), HttpControl(settings, tenant_id)
    return Ports(
        trace(SpoolTransport(settings, producer_id, on_error) if spooling else DirectTransport(settings, on_error)),
        control,
        KafkaCleanupConsumer(settings, tenant_id, service_id, on_error),
        control if settings.control_url is not None else None,
    )


def _tracing(settings: ProducerSettings) -> Callable[[Transport], Transport]:
    """Return what wraps a transport for traces, or returns it as it is."""
    if not settings.trace_events:
        return lambda transport: transport
    try:
        from sessionary.producers.delivery.tracing_transport import TracingTransport
    except ImportError:
        raise SettingsError("SESSIONARY_TRACE_EVENTS needs OpenTelemetry: pip install 'sessionary[otel]'") from None
    return lambda transport: TracingTransport(transport, settings.topics.events)


__all__ = ["kafka_ports"]
