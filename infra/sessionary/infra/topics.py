"""Creates and configures a broker's topics as `sessionary.schemas.topics` describes them.

Idempotent.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

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
_REPLICAS = 3  # with two in sync, any one broker may be away


class TopicState(NamedTuple):
    """A topic as configured in the broker.

    `replicas` has each partition's brokers, the preferred leader first. `config` holds only the
    settings that the specification names.
    """

    replicas: Sequence[Sequence[int]]
    config: Mapping[str, str | None]

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.replicas)

    @property
    def replication_factor(self) -> int:
        """The number of replicas of the partition that has the fewest."""
        return min(map(len, self.replicas))


class TopicChange(NamedTuple):
    """A change that one topic needs: create it with so many `replicas`, or set `config`."""

    spec: TopicSpec
    replicas: int | None
    config: Mapping[str, str]

    def describe_change(self) -> str:
        """Return the change in one line."""
        if self.replicas is not None:
            return (
                f"{self.spec.name}: created with {self.spec.partitions} partitions, replication factor {self.replicas}"
            )
        return f"{self.spec.name}: " + ", ".join(f"{name} = {value}" for name, value in self.config.items())


class Reassignment(TypedDict):
    """What `kafka-reassign-partitions.sh --reassignment-json-file` reads."""

    version: int
    partitions: list[dict[str, str | int | list[int]]]


class ReplicationDiffers(Invalid):
    """Topics have another replication factor; `plan` is where Kafka's own tool may put replicas."""

    def __init__(self, plan: Reassignment, text: str) -> None:
        """`text` names the topics and the steps."""
        super().__init__("invalid_value", text)
        self.plan = plan


def topic_changes(
    specs: Sequence[TopicSpec], found: Mapping[str, TopicState], replication_factor: int
) -> list[TopicChange]:
    """Return the changes that the topics need; those created get `replication_factor`. Pure.

    Raises `Invalid` if a topic has another number of partitions: keys would move to other ones.
    """
    result: list[TopicChange] = []
    for spec in specs:
        state = found.get(spec.name)
        if state is None:
            wanted = spec.with_replicas(replication_factor)
            result.append(TopicChange(wanted, replication_factor, wanted.config))
            continue
        if state.partitions != spec.partitions:
            raise Invalid(
                "invalid_value",
                f"topic {spec.name} has {state.partitions} partitions, the settings say {spec.partitions}. Sessions "
                "cannot move between partitions: set SESSIONARY_PARTITIONS to the number that the topic has, or "
                "choose another SESSIONARY_TOPIC_PREFIX",
            )
        if wrong := spec.with_replicas(state.replication_factor).wrong_settings(state.config):
            result.append(TopicChange(spec, None, wrong))
    return result


def reassignment_plan(
    found: Mapping[str, TopicState], brokers: Sequence[int], replication_factor: int
) -> Reassignment | None:
    """Return where the replicas of all topics go; None if each partition has as many as wanted.

    Replicas stay where they are, as far as possible, and the preferred leader stays. Others are
    spread over the brokers; racks are not looked at. Pure.
    """
    ids = sorted(brokers)
    rows: list[dict[str, str | int | list[int]]] = []
    for name, state in found.items():
        for partition, replicas in enumerate(state.replicas):
            if len(replicas) == replication_factor:
                continue
            turned = [ids[(partition + place) % len(ids)] for place in range(len(ids))]
            wanted = [*replicas, *(broker for broker in turned if broker not in replicas)][:replication_factor]
            rows.append({"topic": name, "partition": partition, "replicas": wanted})
    return Reassignment(version=1, partitions=rows) if rows else None


def _check_replication(
    settings: KafkaSettings, found: Mapping[str, TopicState], brokers: Sequence[int], replication_factor: int
) -> None:
    """Raise `ReplicationDiffers`, or `Invalid` if there are too few brokers."""
    plan = reassignment_plan(found, brokers, replication_factor)
    if plan is None:
        return
    if replication_factor > len(brokers):
        raise Invalid(
            "invalid_value",
            f"replication factor {replication_factor} needs as many brokers; {len(brokers)} are there",
        )
    differing = sorted({str(row["topic"]) for row in plan["partitions"]})
    tool = (
        f"kafka-reassign-partitions.sh --bootstrap-server {settings.bootstrap_servers} "
        "--reassignment-json-file reassignment.json"
    )
    needed = max(int(state.config.get("min.insync.replicas") or 1) for state in found.values())
    first = (
        f"First set min.insync.replicas={replication_factor} on each of them by kafka-configs.sh: until then a topic "
        f"with fewer replicas than {needed} takes no record. "
        if needed > replication_factor
        else ""
    )
    raise ReplicationDiffers(
        plan,
        f"nothing was changed: {len(differing)} topics have another replication factor than {replication_factor}: "
        f"{', '.join(differing)}. Kafka moves replicas by its own tool, while all roles go on. Keep the JSON that this "
        f"command prints as reassignment.json, and look at its brokers if yours have racks. {first}Then run: {tool} "
        f"--execute; {tool} --verify, until it is complete; and this command again, for min.insync.replicas",
    )


def _admin_client(settings: KafkaSettings) -> AdminClient:
    return AdminClient(settings.client_config())


def _describe_topics(admin: AdminClient, specs: Sequence[TopicSpec]) -> tuple[dict[str, TopicState], list[int]]:
    """Return the topics that exist, and the brokers' ids."""
    metadata = admin.list_topics(timeout=_REACH_S)
    there = [spec.name for spec in specs if spec.name in metadata.topics and metadata.topics[spec.name].error is None]
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in there]
    answers = admin.describe_configs(resources, request_timeout=_TIMEOUT_S) if resources else {}
    configs = {resource.name: answer.result(_TIMEOUT_S) for resource, answer in answers.items()}
    found: dict[str, TopicState] = {}
    for name in there:
        partitions = metadata.topics[name].partitions
        config = {key: entry.value for key, entry in configs[name].items()}
        found[name] = TopicState([partitions[number].replicas for number in sorted(partitions)], config)
    return found, sorted(metadata.brokers)


def _create_topics(admin: AdminClient, changes: Sequence[TopicChange]) -> set[str]:
    """Create topics; return the names of those that exist although they were not listed."""
    topics = [
        NewTopic(spec.name, spec.partitions, replication_factor=replicas, config=spec.config)
        for spec, replicas, _ in changes
        if replicas is not None
    ]
    existing = set[str]()
    for name, answer in (admin.create_topics(topics, operation_timeout=_TIMEOUT_S) if topics else {}).items():
        try:
            answer.result(_TIMEOUT_S)
        except KafkaException as error:
            # Another process creates the same topics at this moment, or ours may not list them.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            existing.add(name)
    return existing


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
        found, _brokers = _describe_topics(_admin_client(settings), specs)
    except KafkaException as error:
        raise _kafka_error(settings, error) from None
    return [
        f"{change.spec.name}: missing" if change.replicas is not None else change.describe_change()
        for change in topic_changes(specs, found, 1)
    ]


def has_topic_ids(settings: KafkaSettings) -> bool:
    """Return whether the broker gives topics ids, by which one that is made again shows. Blocks.

    Raises `Unavailable`, `Invalid`.
    """
    try:
        return ask_topic_id(AdminConnection(settings), settings.topics.events, _REACH_S) is not None
    except KafkaException as error:
        raise _kafka_error(settings, error) from None


class AppliedTopics(NamedTuple):
    """What `apply_topics` did and found: one line per change, the fewest replicas, the brokers."""

    changes: Sequence[str]
    replication_factor: int
    brokers: int


def apply_topics(settings: KafkaSettings, replication_factor: int | None = None) -> AppliedTopics:
    """Create missing topics, correct settings that differ.

    `replication_factor` None: missing topics get as many replicas as the others have; if there is
    none yet, as many as there are brokers, at most three.

    Blocks. Raises `Unavailable` if the broker does not answer; `ReplicationDiffers`; `Invalid` if a
    topic has another number of partitions, or if the broker refuses a change.
    """
    specs = topic_specs(settings.topic_prefix, settings.partitions)
    admin = _admin_client(settings)
    try:
        found, brokers = _describe_topics(admin, specs)
        known = [state.replication_factor for state in found.values()]
        replicas = replication_factor or min(known, default=min(_REPLICAS, len(brokers)))
        changes = topic_changes(specs, found, replicas)
        if replication_factor is not None:
            _check_replication(settings, found, brokers, replication_factor)
        existing = _create_topics(admin, changes)
        _alter_topics(admin, [change for change in changes if change.replicas is None])
    except KafkaException as error:
        raise _kafka_error(settings, error) from None
    lines = [
        f"{change.spec.name}: exists, but was not listed: it was just made elsewhere, or Describe on it is missing; "
        "run this command again to compare its settings"
        if change.spec.name in existing
        else change.describe_change()
        for change in changes
    ]
    return AppliedTopics(lines, min(known, default=replicas), len(brokers))


def _kafka_error(settings: KafkaSettings, error: KafkaException) -> Unavailable | Invalid:
    reason: KafkaError = error.args[0]
    if (
        reason.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
        or reason.retriable()
    ):
        return Unavailable(f"Kafka at {settings.bootstrap_servers} does not answer", _RETRY_AFTER_S)
    return Invalid("invalid_value", f"Kafka at {settings.bootstrap_servers}: {reason.str()}")
