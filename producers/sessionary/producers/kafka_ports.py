"""The outside of a client in production: Kafka and the control API."""

from sessionary.producers.control.cleanup_consumer import KafkaCleanupConsumer
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.delivery.direct_transport import DirectTransport
from sessionary.producers.delivery.spool_transport import SpoolTransport
from sessionary.producers.ports import OnError, Ports
from sessionary.producers.settings import ProducerSettings


def kafka_ports(
    settings: ProducerSettings, tenant_id: str, service_id: str, producer_id: str, on_error: OnError
) -> Ports:
    """Return the ports of a client with these settings. Raises `SettingsError`."""
    spooling = settings.delivery_policy == "spool"
    return Ports(
        SpoolTransport(settings, producer_id, on_error) if spooling else DirectTransport(settings, on_error),
        HttpControl(settings),
        KafkaCleanupConsumer(settings, tenant_id, service_id, on_error),
    )


__all__ = ["kafka_ports"]
