"""Settings from `SESSIONARY_*` environment variables: the bases of every role's settings class.

The field `topic_prefix` is read from `SESSIONARY_TOPIC_PREFIX`. Variables without a field are
ignored, because they belong to other roles.
"""

import os
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.topics import TopicNames

ENV_PREFIX = "SESSIONARY_"
SOCKET_TIMEOUT_MS = 10_000


class EnvSettings(BaseModel):
    """A frozen group of settings, which `from_env` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Self:
        """Read every field from its variable in `environ`, by default the process's environment.

        `overrides` that are not None win. Raises `SettingsError` with every variable that is wrong.
        """
        source = os.environ if environ is None else environ
        values: dict[str, object] = {
            name: source[variable] for name in cls.model_fields if (variable := ENV_PREFIX + name.upper()) in source
        }
        values.update((name, value) for name, value in overrides.items() if value is not None)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            faults = "; ".join(
                f"{ENV_PREFIX}{'.'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
                for fault in error.errors()
            )
            raise SettingsError(faults) from None


class LogSettings(EnvSettings):
    """What a server role writes to its log."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least level of what a role writes to stderr"
    )
    log_format: Literal["json", "text"] | None = Field(
        None, description="form of a role's log lines: json or text; by default text on a terminal, else json"
    )


class KafkaSettings(EnvSettings):
    """How to reach Kafka, and which topics to use."""

    bootstrap_servers: str = Field("127.0.0.1:9092", description="Kafka brokers, host:port, comma-separated")
    topic_prefix: str = Field("sessionary", description="first part of every topic name", pattern=r"^[A-Za-z0-9._-]+$")
    partitions: int = Field(4, description="partitions of every topic; fixed once events exist", ge=1, le=10_000)
    security_protocol: str = Field("PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    sasl_mechanism: str | None = Field(None, description="for example SCRAM-SHA-512")
    sasl_username: str | None = Field(None, description="principal's name")
    sasl_password: SecretStr | None = Field(None, description="principal's password")
    ssl_ca_location: str | None = Field(None, description="file of the certificate authority")
    schema_registry_url: str | None = Field(
        None, description="URL of the schema registry for values in Confluent's framing; needs the extra `registry`"
    )

    @property
    def topics(self) -> TopicNames:
        """The topic names with the prefix."""
        return TopicNames.with_prefix(self.topic_prefix)

    def client_config(self) -> dict[str, str | int | float | bool]:
        """Return what the configurations of all confluent-kafka clients have in common.

        Keys are librdkafka's. The caller adds what its consumer, producer or admin client needs.
        """
        config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            # By default a client that has lost all its brokers forgets them, and starts again with
            # the bootstrap servers. Seen after a broker's restart: a producer that connected to no
            # broker for minutes, with a full queue; a transaction or a commit that waited for the
            # former coordinator without end (librdkafka issues 5511, 5456).
            "metadata.recovery.strategy": "none",
            # A broker that comes back is found within half a second; librdkafka's default is 10 s.
            "reconnect.backoff.max.ms": 500,
            # A broker that falls silent without closing its connections (a frozen host, packets
            # that are dropped) is given up after this long; librdkafka's defaults are 60 s and
            # 30 s. Before that no client looks for the partition's new leader, and agents whose
            # heartbeats arrive later than `quiet_ms` (25 s) after an outage are timed out. It
            # bounds each produce, fetch (plus fetch.wait.max.ms), commit, metadata and transaction
            # request; message.timeout.ms bounds the repeats of a produce request. It may exceed
            # transaction.timeout.ms by 100 ms at most, and a blocking call must be given at least
            # as much time. JoinGroup is not bounded by it, but by max.poll.interval.ms.
            "socket.timeout.ms": SOCKET_TIMEOUT_MS,
            "socket.connection.setup.timeout.ms": SOCKET_TIMEOUT_MS,
            # librdkafka writes to stderr by default; errors reach us by callbacks and exceptions.
            "log_level": 0,
        }
        optional = {
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password.get_secret_value() if self.sasl_password else None,
            "ssl.ca.location": self.ssl_ca_location,
        }
        config.update((name, value) for name, value in optional.items() if value is not None)
        return config

    def reader_config_of(self, group_id: str) -> dict[str, str | int | float | bool]:
        """Return what the configurations of all our consumers have in common.

        They read committed records, commit nothing unless told to, and learn where each log ends,
        transaction markers included. The caller adds what happens at an unknown offset.
        """
        return {
            **self.client_config(),
            "group.id": group_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }


class ClickHouseSettings(EnvSettings):
    """How to reach ClickHouse."""

    clickhouse_url: str = Field("http://127.0.0.1:8123", description="ClickHouse's HTTP interface")
    clickhouse_user: str = Field("default", description="ClickHouse user")
    clickhouse_password: SecretStr = Field(SecretStr(""), description="ClickHouse password")
    clickhouse_database: str = Field(
        "sessionary", description="database of this pipeline; an extra pipeline has its own", pattern=r"^[A-Za-z_]\w*$"
    )


__all__ = ["ENV_PREFIX", "SOCKET_TIMEOUT_MS", "ClickHouseSettings", "EnvSettings", "KafkaSettings", "LogSettings"]
