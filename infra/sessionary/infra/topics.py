"""Creates and configures a broker's topics as `sessionary.schemas.topics` describes them.

Idempotent.
"""

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
from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import TopicSpec, topic_specs

_TIMEOUT_S = 15.0
_REACH_S = 3.0  # a command says within 5 s that the broker is away
_RETRY_AFTER_S = 2.0


class TopicState(NamedTuple):
    """A topic as configured in the broker.

    `config` holds only the settings that the specification names.
    """

    partitions: int
    config: Mapping[str, str | None]


class TopicChange(NamedTuple):
    """A change that one topic needs: `create` it, or set `config`."""

    spec: TopicSpec
    create: bool
    config: Mapping[str, str]

    def describe_change(self) -> str:
        """Return the change in one line."""
        if self.create:
            return f"{self.spec.name}: created with {self.spec.partitions} partitions"
        return f"{self.spec.name}: " + ", ".join(f"{name} = {value}" for name, value in self.config.items())


def topic_changes(specs: Sequence[TopicSpec], found: Mapping[str, TopicState]) -> list[TopicChange]:
    """Return the changes that the topics need. Pure.

    Raises `Invalid` if a topic has another number of partitions: keys would move to other ones.
    """
    result: list[TopicChange] = []
    for spec in specs:
        state = found.get(spec.name)
        if state is None:
            result.append(TopicChange(spec, create=True, config=spec.config))
            continue
        if state.partitions != spec.partitions:
            raise Invalid(
                "invalid_value",
                f"topic {spec.name} has {state.partitions} partitions, the settings say {spec.partitions}. Sessions "
                "cannot move between partitions: set SESSIONARY_PARTITIONS to the number that the topic has, or "
                "choose another SESSIONARY_TOPIC_PREFIX",
            )
        if wrong := spec.wrong_settings(state.config):
            result.append(TopicChange(spec, create=False, config=wrong))
    return result


def _admin_client(settings: KafkaSettings) -> AdminClient:
    return AdminClient(settings.client_config())


def _describe_topics(admin: AdminClient, specs: Sequence[TopicSpec]) -> dict[str, TopicState]:
    metadata = admin.list_topics(timeout=_REACH_S).topics
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


def _create_topics(admin: AdminClient, changes: Sequence[TopicChange], replication_factor: int) -> None:
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
            # Another process creates the same topics at this moment; they exist, as requested.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _alter_topics(admin: AdminClient, changes: Sequence[TopicChange]) -> None:
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


def count_brokers(settings: KafkaSettings) -> int:
    """Return the number of brokers in the cluster. Blocks for up to 3 s.

    Raises `Unavailable` if none answers, `Invalid` if they refuse.
    """
    try:
        return len(_admin_client(settings).list_topics(timeout=_REACH_S).brokers)
    except KafkaException as error:
        raise _kafka_error(settings, error) from None


def find_cluster_id(settings: KafkaSettings) -> str | None:
    """Return the cluster's id; None if its brokers report none. Blocks for up to 3 s.

    Raises as `count_brokers` does.
    """
    try:
        found: str | None = _admin_client(settings).list_topics(timeout=_REACH_S).cluster_id
    except KafkaException as error:
        raise _kafka_error(settings, error) from None
    return found


def list_topic_changes(settings: KafkaSettings) -> list[str]:
    """Return the changes of `apply_topics`, one line per topic. Blocks.

    Raises `Unavailable`, `Invalid`.
    """
    specs = topic_specs(settings.topic_prefix, settings.partitions)
    try:
        found = _describe_topics(_admin_client(settings), specs)
    except KafkaException as error:
        raise _kafka_error(settings, error) from None
    return [
        f"{change.spec.name}: missing" if change.create else change.describe_change()
        for change in topic_changes(specs, found)
    ]


def has_topic_ids(settings: KafkaSettings) -> bool:
    """Return whether the broker gives topics ids, by which one that is made again shows. Blocks.

    Raises `Unavailable`, `Invalid`.
    """
    try:
        return ask_topic_id(AdminConnection(settings), settings.topics.events, _REACH_S) is not None
    except KafkaException as error:
        raise _kafka_error(settings, error) from None


def apply_topics(settings: KafkaSettings, replication_factor: int = 1) -> list[str]:
    """Create missing topics, correct settings that differ; return one line per change.

    Blocks. Raises `Unavailable` if the broker does not answer, `Invalid` if a topic has another
    number of partitions or if the broker refuses a change.
    """
    specs = topic_specs(settings.topic_prefix, settings.partitions, replication_factor)
    admin = _admin_client(settings)
    try:
        changes = topic_changes(specs, _describe_topics(admin, specs))
        _create_topics(admin, [change for change in changes if change.create], replication_factor)
        _alter_topics(admin, [change for change in changes if not change.create])
    except KafkaException as error:
        raise _kafka_error(settings, error) from None
    return [change.describe_change() for change in changes]


def _kafka_error(settings: KafkaSettings, error: KafkaException) -> Unavailable | Invalid:
    reason: KafkaError = error.args[0]
    if (
        reason.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
        or reason.retriable()
    ):
        return Unavailable(f"Kafka at {settings.bootstrap_servers} does not answer", _RETRY_AFTER_S)
    return Invalid("invalid_value", f"Kafka at {settings.bootstrap_servers}: {reason.str()}")
