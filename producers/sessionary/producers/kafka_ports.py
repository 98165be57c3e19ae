"""The outside of a client in production: Kafka and the control API, or nothing."""

from collections.abc import Callable

from sessionary.producers.control.cleanup_consumer import KafkaCleanupConsumer
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.delivery.direct_transport import DirectTransport
from sessionary.producers.delivery.spool.transport import SpoolTransport
from sessionary.producers.errors import SpoolUnusable
from sessionary.producers.ports import OnError, PolicyInForce, Ports, SessionPolls, Transport
from sessionary.producers.process.disabled_ports import disabled_ports
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.errors import SettingsError


def kafka_ports(
    settings: ProducerSettings, tenant_id: str, service_id: str, producer_id: str, on_error: OnError
) -> Ports:
    """Return the ports of a client with these settings.

    A spool that cannot be used is reported to `on_error`; the events then wait in memory only.
    Raises `SettingsError`.
    """
    if settings.disabled:
        return disabled_ports()
    trace = _tracing(settings)
    control = HttpControl(settings, tenant_id)
    cleanups = KafkaCleanupConsumer(settings, tenant_id, service_id, on_error)

    def ports_over(transport: Transport, policy: PolicyInForce) -> Ports:
        def tenant_ports(tenant: str, own: ProducerSettings) -> Ports:
            tenant_cleanups = KafkaCleanupConsumer(own, tenant, service_id, on_error)
            tenant_control = HttpControl(own, tenant)
            return Ports(transport, tenant_control, tenant_cleanups, policy, polls=_polls_of(tenant_control, own))

        polls = _polls_of(control, settings)
        return Ports(transport, control, cleanups, policy, tenant_ports=tenant_ports, polls=polls)

    if settings.delivery_policy == "spool":
        try:
            spooling = SpoolTransport(settings, producer_id, on_error)
        except SpoolUnusable as error:
            settings = settings.model_copy(update={"delivery_policy": "drop"})
            on_error(
                SpoolUnusable(
                    f"{error}. Until this client is closed, events wait in memory only, and are dropped if there is "
                    "no room (policy drop). Let SESSIONARY_SPOOL_DIR name a folder that can be written and that "
                    "outlives the process, in a container on a volume"
                )
            )
        else:
            return ports_over(trace(spooling), "spool")._replace(abandon_files=spooling.abandon_files)
    return ports_over(trace(DirectTransport(settings, on_error)), settings.delivery_policy)


def _polls_of(control: HttpControl, settings: ProducerSettings) -> SessionPolls | None:
    return None if settings.control_url is None else control


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
