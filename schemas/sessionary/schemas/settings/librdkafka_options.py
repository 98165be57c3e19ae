"""Settings of librdkafka that are passed through: `SESSIONARY_KAFKA_SSL_KEY_LOCATION` sets
`ssl.key.location`.

No error repeats a value: it may be a secret.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

OPTION_PREFIX: Final = "SESSIONARY_KAFKA_"

_OWN_VARIABLES: Final = {
    "bootstrap.servers": "SESSIONARY_BOOTSTRAP_SERVERS",
    "metadata.broker.list": "SESSIONARY_BOOTSTRAP_SERVERS",
    "security.protocol": "SESSIONARY_SECURITY_PROTOCOL",
    "sasl.mechanism": "SESSIONARY_SASL_MECHANISM",
    "sasl.mechanisms": "SESSIONARY_SASL_MECHANISM",
    "sasl.username": "SESSIONARY_SASL_USERNAME",
    "sasl.password": "SESSIONARY_SASL_PASSWORD",
    "ssl.ca.location": "SESSIONARY_SSL_CA_LOCATION",
}
# The first words of an error that belongs to no single setting.
_AT_CREATION: Final = "Failed to create producer: "
# Settings on which exactly-once, the order of a session's events and their partition depend.
_GUARANTEES: Final = frozenset(
    (
        "acks",
        "allow.auto.create.topics",
        "api.version.request",
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "broker.version.fallback",
        "check.crcs",
        "delivery.timeout.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "isolation.level",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.send.max.retries",
        "message.timeout.ms",
        "offset.store.method",
        "partition.assignment.strategy",
        "partitioner",
        "queuing.strategy",
        "request.required.acks",
        "request.timeout.ms",
        "retries",
        "transaction.timeout.ms",
        "transactional.id",
    )
)
# Settings that each role sets for its clients; one value would not suit all of them.
_OF_ROLES: Final = frozenset(
    (
        "compression.codec",
        "compression.type",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "message.max.bytes",
        "metadata.recovery.strategy",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.ms",
        "session.timeout.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.timeout.ms",
        "statistics.interval.ms",
        "topic.metadata.refresh.interval.ms",
    )
)


def read_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of all variables that begin with `OPTION_PREFIX`, by librdkafka's names."""
    return {
        variable.removeprefix(OPTION_PREFIX).lower().replace("_", "."): value
        for variable, value in environ.items()
        if variable.startswith(OPTION_PREFIX)
    }


def option_variable(name: str) -> str:
    """Return the variable of a setting of librdkafka; some settings have a separate one."""
    return _OWN_VARIABLES.get(name) or _passing_variable(name)


def _passing_variable(name: str) -> str:
    return OPTION_PREFIX + name.upper().replace(".", "_")


def check_options(options: Mapping[str, str]) -> None:
    """Raise `ValueError` with each variable that may not be set or that librdkafka does not accept.

    Opens no connection. A certificate that cannot be read shows later, if a client is made.
    """
    faults = [f"{_passing_variable(name)}: {fault}" for name in options if (fault := _refusal(name)) is not None]
    allowed = {name: value for name, value in options.items() if _refusal(name) is None}
    if allowed and (together := _librdkafka_fault(allowed)) is not None:
        single = {name: _librdkafka_fault({name: value}) for name, value in allowed.items()}
        # A setting that only lacks another one is no fault by itself.
        wrong = {name: fault for name, fault in single.items() if fault and not fault.startswith(_AT_CREATION)}
        faults += [f"{option_variable(name)}: {_value_fault(name, fault)}" for name, fault in wrong.items()]
        if not wrong:
            variables = ", ".join(sorted(map(option_variable, allowed)))
            faults.append(f"{variables}: {_without_values(together.removeprefix(_AT_CREATION), allowed)}")
    if faults:
        raise ValueError("; ".join(sorted(faults)))


def _refusal(name: str) -> str | None:
    if name in _OWN_VARIABLES:
        return f"set {_OWN_VARIABLES[name]} instead"
    if name in _GUARANTEES:
        return f"{name} cannot be set: exactly-once processing and the order of events depend on it"
    if name in _OF_ROLES:
        return f"{name} cannot be set: each role chooses its own"
    return None


def _librdkafka_fault(options: Mapping[str, str]) -> str | None:
    """Return librdkafka's error; None if it accepts the settings. It connects to nothing."""
    # Imported here: only few processes pass settings through.
    from confluent_kafka import KafkaException

    try:
        _make_producer(frozenset(options.items()))
    except KafkaException as error:
        return str(error.args[0].str())
    except (TypeError, ValueError):  # such as a callback, which cannot be a text
        return "it cannot be a text"
    return None


@lru_cache(maxsize=16)
def _make_producer(options: frozenset[tuple[str, str]]) -> None:
    """Raise librdkafka's error about the settings; an error is not kept, as its cause may go."""
    from confluent_kafka import Producer

    Producer({"log_level": 0, **dict(options)})  # a consumer's setting is no error for a producer


def _value_fault(name: str, fault: str) -> str:
    unknown = "No such configuration property" in fault
    return f"librdkafka has no setting {name}" if unknown else f"librdkafka accepts no such value of {name}"


def _without_values(text: str, options: Mapping[str, str]) -> str:
    for value in sorted(options.values(), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text) if value else text
    return text
