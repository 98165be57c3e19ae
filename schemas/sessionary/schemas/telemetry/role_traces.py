"""The tracer of a server role: the SDK is the operator's, and so are its variables.

This module imports OpenTelemetry only if the variables ask for traces.
"""

import os
from typing import TYPE_CHECKING, Final

from sessionary.schemas.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


# The names of all spans and their attributes, as OpenTelemetry's conventions have them.
#
# Those of messaging and generative AI are still in development there: if they change, they change
# here. A span's name is its operation and its topic: `send sessionary.events`.


SCOPE: Final = "sessionary"  # of all tracers

SEND: Final = "send"  # a client hands an event to Kafka
PROCESS: Final = "process"  # a processor has judged an event, and its transaction is committed
STORE: Final = "store"  # a sink writes a block to ClickHouse

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"  # send or process
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"  # text
MESSAGING_CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
MESSAGING_KAFKA_OFFSET: Final = "messaging.kafka.offset"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"  # the event's id
MESSAGING_MESSAGE_BODY_SIZE: Final = "messaging.message.body.size"
MESSAGING_BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
CONVERSATION_ID: Final = "gen_ai.conversation.id"  # the session's id
DB_SYSTEM_NAME: Final = "db.system.name"
DB_COLLECTION_NAME: Final = "db.collection.name"  # the table
ERROR_TYPE: Final = "error.type"

TENANT_ID: Final = "sessionary.tenant.id"
EVENT_TYPE: Final = "sessionary.event.type"
OUTCOME: Final = "sessionary.outcome"  # applied, duplicate or rejected
REJECTION_REASON: Final = "sessionary.rejection.reason"


def role_tracer(role: str, instance: str | None = None) -> "Tracer | None":
    """Return the tracer of this process's role; None unless `OTEL_TRACES_EXPORTER` asks for traces.

    The first call has the SDK configure itself from the standard `OTEL_*` variables, unless the
    program has set a tracer provider. Spans are flushed when the process exits. Raises
    `SettingsError` if the SDK or an exporter is not installed.
    """
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "none").strip().lower()
    if exporter in ("", "none") or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        from opentelemetry import trace

        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            _configure_sdk(role, instance)
    except (ImportError, RuntimeError) as error:
        raise SettingsError(
            f"OTEL_TRACES_EXPORTER is {exporter}, but OpenTelemetry cannot be set up: {error}. Install "
            "opentelemetry-sdk and the exporter, such as opentelemetry-exporter-otlp, or unset the variable"
        ) from None
    return trace.get_tracer(SCOPE)


def _configure_sdk(role: str, instance: str | None) -> None:
    from opentelemetry.sdk._configuration import _OTelSDKConfigurator

    class RoleConfigurator(_OTelSDKConfigurator):  # as the SDK asks of those who configure it
        pass

    named = {} if instance is None else {"service.instance.id": instance}
    if "OTEL_SERVICE_NAME" not in os.environ:
        named["service.name"] = f"{SCOPE}-{role.replace(' ', '-')}"
    RoleConfigurator().configure(resource_attributes=named)  # type: ignore[no-untyped-call]
