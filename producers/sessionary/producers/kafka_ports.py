"""The ports of a client in production: Kafka and the control API, or nothing."""

from collections.abc import Callable
from typing import NamedTuple

from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.control.http_follows import HttpFollows
from sessionary.producers.control.http_runs import HttpRuns
from sessionary.producers.control.request_consumer import CLEANUPS, MIGRATIONS, TASKS, KafkaRequestConsumer
from sessionary.producers.delivery.direct_transport import DirectTransport
from sessionary.producers.delivery.spool.transport import SpoolTransport
from sessionary.producers.errors import SpoolUnusable
from sessionary.producers.ports import OnError, PolicyInForce, Ports, Transport
from sessionary.producers.process.disabled_ports import disabled_ports
from sessionary.producers.run_ports import RecordReads
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

    def answers_of(tenant: str, its: ProducerSettings) -> _Answers:
        kinds = (CLEANUPS, TASKS, MIGRATIONS)
        readers = [KafkaRequestConsumer(its, tenant, service_id, on_error, kind) for kind in kinds]
        return _Answers(HttpControl(its, tenant), *readers)

    own = answers_of(tenant_id, settings)  # before the transport: a malformed setting leaves nothing open
    delivery = _open_delivery(settings, producer_id, on_error)
    transport = trace(delivery.transport)

    def ports_with(answers: _Answers) -> Ports:
        control = answers.control
        polls = None if control.url is None else control
        parts = (transport, control, answers.cleanups, delivery.policy)
        runs, close_idle = HttpRuns(control), control.close_idle
        return Ports(
            *parts,
            polls=polls,
            runs=runs,
            tasks=control,
            task_requests=answers.tasks,
            migrations=answers.migrations,
            follows=HttpFollows(control),
            close_idle=close_idle,
            place_of=delivery.place_of,
            records=open_records,
        )

    def open_records() -> RecordReads:
        from sessionary.producers.control.kafka_record import KafkaRecords  # few clients replay

        return KafkaRecords(settings)

    def tenant_ports(tenant: str, its: ProducerSettings) -> Ports:
        return ports_with(answers_of(tenant, its))

    return ports_with(own)._replace(tenant_ports=tenant_ports, abandon_files=delivery.abandon_files)


class _Answers(NamedTuple):
    """The sources of the processor's decisions and requests for one tenant's client."""

    control: HttpControl
    cleanups: KafkaRequestConsumer
    tasks: KafkaRequestConsumer
    migrations: KafkaRequestConsumer


class _Delivery(NamedTuple):
    """A transport, and its policy for events without room."""

    transport: Transport
    policy: PolicyInForce
    abandon_files: Callable[[], None]
    place_of: Callable[[bytes], int | None]


def _open_delivery(settings: ProducerSettings, producer_id: str, on_error: OnError) -> _Delivery:
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
            return _Delivery(spooling, "spool", spooling.abandon_files, spooling.place_of)
    direct = DirectTransport(settings, on_error)
    return _Delivery(direct, settings.delivery_policy, lambda: None, direct.place_of)


def _tracing(settings: ProducerSettings) -> Callable[[Transport], Transport]:
    """Return a wrapper of transports that adds traces, or the identity."""
    if not settings.trace_events:
        return lambda transport: transport
    try:
        from sessionary.producers.delivery.tracing_transport import TracingTransport
    except ImportError:
        raise SettingsError("SESSIONARY_TRACE_EVENTS needs OpenTelemetry: pip install 'sessionary[otel]'") from None
    return lambda transport: TracingTransport(transport, settings.topics.events)
