"""Brings a broker's topics to the state that `sessionary.schemas.topics` describes; idempotent."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not by the names of its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from sessionary.schemas.errors import Invalid, Unavailable
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import TopicSpec, topic_specs

_TIMEOUT_S = 15.0
_RETRY_AFTER_S = 2.0


class TopicState(NamedTuple):
    """A topic as the broker has it; `config` holds what was asked about."""

    partitions: int
    config: Mapping[str, str | None]


class TopicDifference(NamedTuple):
    """What is to be done about one topic: `create` it, or set `config`."""

    spec: TopicSpec
    create: bool
    config: Mapping[str, str]

    def text(self) -> str:
        """Say it in one line."""
        if self.create:
            return f"{self.spec.name}: created with {self.spec.partitions} partitions"
        return f"{self.spec.name}: " + ", ".join(f"{name} = {value}" for name, value in self.config.items())


def differences(specs: Sequence[TopicSpec], found: Mapping[str, TopicState]) -> list[TopicDifference]:
    """Compare; pure. Raises `Invalid` for another number of partitions: with it every key would change its place."""
    result: list[TopicDifference] = []
    for spec in specs:
        state = found.get(spec.name)
        if state is None:
            result.append(TopicDifference(spec, create=True, config=spec.config))
            continue
        if state.partitions != spec.partitions:
            raise Invalid(
                "invalid_value",
                f"topic {spec.name} has {state.partitions} partitions, the settings say {spec.partitions}: a session's "
                "place cannot change; set SESSIONARY_PARTITIONS to what is there, or choose another topic prefix",
            )
        wrong = {name: value for name, value in spec.config.items() if state.config.get(name) != value}
        if wrong:
            result.append(TopicDifference(spec, create=False, config=wrong))
    return result


def _admin(settings: KafkaSettings) -> AdminClient:
    return AdminClient(settings.client_config())


def _found(admin: AdminClient, specs: Sequence[TopicSpec]) -> dict[str, TopicState]:
    metadata = admin.list_topics(timeout=_TIMEOUT_S).topics
    there = [spec for spec in specs if spec.name in metadata and metadata[spec.name].error is None]
    if not there:
        return {}
    answers = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, spec.name) for spec in there], request_timeout=_TIMEOUT_S
    )
    configs = {resource.name: answer.result(_TIMEOUT_S) for resource, answer in answers.items()}
    return {
        spec.name: TopicState(
            len(metadata[spec.name].partitions),
            {name: configs[spec.name][name].value for name in spec.config if name in configs[spec.name]},
        )
        for spec in there
    }


def _create(admin: AdminClient, changes: Sequence[TopicDifference], replication_factor: int) -> None:
    topics = [
        NewTopic(
            change.spec.name, change.spec.partitions, replication_factor=replication_factor, config=change.spec.config
        )
        for change in changes
    ]
    for answer in (admin.create_topics(topics, operation_timeout=_TIMEOUT_S) if topics else {}).values():
        try:
            answer.result(_TIMEOUT_S)
        except KafkaException as error:
            # Somebody else applies the same topics at this moment: they are there, which is all that was asked.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _alter(admin: AdminClient, changes: Sequence[TopicDifference]) -> None:
    resources = [
        ConfigResource(
            ResourceType.TOPIC,
            change.spec.name,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in change.config.items()
            ],
        )
        for change in changes
    ]
    for answer in (admin.incremental_alter_configs(resources) if resources else {}).values():
        answer.result(_TIMEOUT_S)


def topic_differences(settings: KafkaSettings) -> list[str]:
    """Say what `apply_topics` would do, one line each. Raises `Unavailable`, `Invalid`."""
    specs = topic_specs(settings.topic_prefix, settings.partitions)
    try:
        found = _found(_admin(settings), specs)
    except KafkaException as error:
        raise _unavailable(settings, error) from None
    return [f"{change.spec.name}: missing" if change.create else change.text() for change in differences(specs, found)]


def apply_topics(settings: KafkaSettings, replication_factor: int = 1) -> list[str]:
    """Create what is missing, set what differs; return a line per change (none: all was as it should be).

    Blocks. Raises `Unavailable` where the broker does not answer, `Invalid` where a topic has another number of
    partitions or the broker refuses.
    """
    specs = topic_specs(settings.topic_prefix, settings.partitions, replication_factor)
    admin = _admin(settings)
    try:
        changes = differences(specs, _found(admin, specs))
        _create(admin, [change for change in changes if change.create], replication_factor)
        _alter(admin, [change for change in changes if not change.create])
    except KafkaException as error:
        raise _unavailable(settings, error) from None
    return [change.text() for change in changes]


def _unavailable(settings: KafkaSettings, error: KafkaException) -> Unavailable | Invalid:
    reason: KafkaError = error.args[0]
    if (
        reason.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
        or reason.retriable()
    ):
        return Unavailable(f"Kafka at {settings.bootstrap_servers} does not answer", _RETRY_AFTER_S)
    return Invalid("invalid_value", f"Kafka at {settings.bootstrap_servers}: {reason.str()}")


__all__ = ["TopicDifference", "TopicState", "apply_topics", "differences", "topic_differences"]
