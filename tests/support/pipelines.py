"""A test's own topics and database on shared servers, under random names."""

import json
import secrets
import urllib.error
import urllib.request

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from pydantic import SecretStr

from sessionary.schemas.kafka.clients import AdminConnection, ask_topic_id
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings, EnvSettings, KafkaSettings
from sessionary.schemas.settings.librdkafka_options import option_variable
from sessionary.schemas.topics import topic_specs
from tests.auditor.signatures import SECRETS
from tests.support.waiting import wait_until

PARTITIONS = 4
_ADMIN_TIMEOUT_S = 120.0
_SQL_TIMEOUT_S = 300.0


def _admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def new_pipeline(bootstrap_servers: str, partitions: int = PARTITIONS) -> KafkaSettings:
    """Create all topics below a fresh prefix on a broker."""
    kafka = KafkaSettings(
        bootstrap_servers=bootstrap_servers, topic_prefix=f"t{secrets.token_hex(5)}", partitions=partitions
    )
    specs = topic_specs(kafka.topic_prefix, partitions)
    wanted = [
        NewTopic(spec.name, num_partitions=spec.partitions, replication_factor=1, config=spec.config) for spec in specs
    ]
    admin = _admin(bootstrap_servers)  # referenced until the results are there: they die with the client
    for made in admin.create_topics(
        wanted, operation_timeout=_ADMIN_TIMEOUT_S, request_timeout=_ADMIN_TIMEOUT_S
    ).values():
        made.result(_ADMIN_TIMEOUT_S)
    # The controller has made them; the broker that is asked next learns of them a moment later, and
    # makes their logs one after another. Meanwhile it may refuse a producer's first request and
    # accept the second one; then librdkafka calls the first one delivered, to no offset.
    places = [TopicPartition(spec.name, n) for spec in specs for n in range(spec.partitions)]
    wait_until(lambda: _have_logs(admin, places), 30, "the topics' logs")
    return kafka


def make_topic_again(kafka: KafkaSettings, topic: str) -> None:
    """Delete a topic and create it with its settings: the same name, and another id."""
    connection, admin = AdminConnection(kafka), _admin(kafka.bootstrap_servers)
    former = ask_topic_id(connection, topic, _ADMIN_TIMEOUT_S)
    admin.delete_topics([topic])[topic].result(_ADMIN_TIMEOUT_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=_ADMIN_TIMEOUT_S).topics, 30, "the topic to be gone")
    (spec,) = (spec for spec in topic_specs(kafka.topic_prefix, kafka.partitions) if spec.name == topic)
    wanted = NewTopic(topic, num_partitions=spec.partitions, replication_factor=1, config=spec.config)

    def is_made() -> bool:
        try:
            admin.create_topics([wanted])[topic].result(_ADMIN_TIMEOUT_S)
        except KafkaException as error:  # the broker may not have deleted the former one yet
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS and _has_other_id())
        return True

    def _has_other_id() -> bool:
        try:
            return ask_topic_id(connection, topic, _ADMIN_TIMEOUT_S) != former
        except KafkaException:  # the broker that answers may not know the new topic yet
            return False

    wait_until(is_made, 30, "the topic to be made")
    wait_until(_has_other_id, 30, "the new topic")
    wait_until(lambda: _have_logs(admin, [TopicPartition(topic, n) for n in range(spec.partitions)]), 60, "its logs")


def _have_logs(admin: AdminClient, places: list[TopicPartition]) -> bool:
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = dict.fromkeys(places, latest)
    try:
        for found in admin.list_offsets(wanted, request_timeout=_ADMIN_TIMEOUT_S).values():
            found.result(_ADMIN_TIMEOUT_S)
    except KafkaException:  # of one of many kinds: no leader, unknown topic, unknown leader epoch
        return False
    return True


def alter_topic(kafka: KafkaSettings, topic: str, settings: dict[str, str]) -> None:
    """Set settings of a topic."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    admin = _admin(kafka.bootstrap_servers)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for altered in admin.incremental_alter_configs([resource], request_timeout=_ADMIN_TIMEOUT_S).values():
        altered.result(_ADMIN_TIMEOUT_S)


def refuse_records(
    kafka: KafkaSettings, topic: str, settings: dict[str, str], partition: int, value: bytes, code: int
) -> None:
    """Set settings of a topic, and wait until its broker refuses a record with `code`.

    A broker tells a new setting before it acts on it: 0.7 s later once. Records that it still takes
    stay in the partition.
    """
    alter_topic(kafka, topic, settings)
    producer = Producer({**kafka.client_config(), "linger.ms": 0, "retries": 0})
    codes: list[int] = []

    def is_refused() -> bool:
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: codes.append(_code_of(error)))
        producer.flush(_ADMIN_TIMEOUT_S)
        return bool(codes) and codes[-1] == code

    wait_until(is_refused, 30, f"{topic} to refuse a record")


def _code_of(error: KafkaError | None) -> int:
    return KafkaError.NO_ERROR if error is None else error.code()


def remove_pipeline(kafka: KafkaSettings) -> None:
    """Delete the topics of `new_pipeline`; topics that are gone already are no error."""
    admin = _admin(kafka.bootstrap_servers)
    for deleted in admin.delete_topics(list(kafka.topics), request_timeout=_ADMIN_TIMEOUT_S).values():
        try:
            deleted.result(_ADMIN_TIMEOUT_S)
        except KafkaException:
            continue


def new_clickhouse(url: str) -> ClickHouseSettings:
    """Create an empty database at an endpoint."""
    settings = ClickHouseSettings(clickhouse_url=url, clickhouse_database=f"t{secrets.token_hex(5)}")
    run_sql(settings, f"CREATE DATABASE {settings.clickhouse_database}")
    return settings


def drop_database(clickhouse: ClickHouseSettings) -> None:
    """Drop a database, and that of its views with parameters."""
    for name in (clickhouse.between_database, clickhouse.clickhouse_database):
        run_sql(clickhouse, f"DROP DATABASE IF EXISTS {name}")


def run_sql(clickhouse: ClickHouseSettings, sql: str) -> str:
    """Run one statement without any driver; return its output.

    The output is tab-separated unless the statement names a format.
    """
    request = urllib.request.Request(
        clickhouse.clickhouse_url,
        data=sql.encode(),
        headers={
            "X-ClickHouse-User": clickhouse.clickhouse_user,
            "X-ClickHouse-Key": clickhouse.clickhouse_password.get_secret_value(),
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=_SQL_TIMEOUT_S) as response:
            text: bytes = response.read()
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{sql}\n{error.read().decode(errors='replace')}") from None
    return text.decode()


def environment(*groups: EnvSettings, **more: str) -> dict[str, str]:
    """Return settings as `SESSIONARY_*` variables; `more` are further fields by name.

    Each test pipeline has the same signing keys, which the auditor knows.
    """
    variables = {ENV_PREFIX + "SIGNING_KEYS": json.dumps(SECRETS)}
    for group in groups:
        for name in type(group).model_fields:
            value = getattr(group, name)
            if name == "librdkafka":
                variables |= {option_variable(option): setting for option, setting in value.items()}
            elif value not in (None, {}):
                plain = value.get_secret_value() if isinstance(value, SecretStr) else value
                variables[ENV_PREFIX + name.upper()] = json.dumps(plain) if isinstance(plain, dict) else str(plain)
    return variables | {ENV_PREFIX + name.upper(): value for name, value in more.items()}


def set_environment(monkeypatch: pytest.MonkeyPatch, *groups: EnvSettings, **more: str) -> None:
    """Set the variables of settings in this process, for commands that the test calls."""
    for name, value in environment(*groups, **more).items():
        monkeypatch.setenv(name, value)
