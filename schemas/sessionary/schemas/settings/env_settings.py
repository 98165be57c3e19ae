"""The base of every role's settings class: fields from `SESSIONARY_*` environment variables.

The field `topic_prefix` is read from `SESSIONARY_TOPIC_PREFIX`. Variables without a field are
ignored, because they belong to other roles. So are those that Kubernetes makes of a Service, and
those without a value (`variables.read_variables`).
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings.librdkafka_options import OPTION_PREFIX, check_options, read_options
from sessionary.schemas.settings.variables import ENV_PREFIX, read_variables
from sessionary.schemas.topics import TopicNames


class EnvSettings(BaseModel):
    """A frozen group of settings, which `from_env` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Self:
        """Read every field from its variable in `environ`, by default the process's environment.

        Values are read as `read_variables` does. `overrides` that are not None win. Raises
        `SettingsError` with every variable that is wrong.
        """
        source = read_variables(os.environ if environ is None else environ)
        values: dict[str, object] = {
            name: source[variable] for name in cls.model_fields if (variable := ENV_PREFIX + name.upper()) in source
        }
        values.update(cls._further_values(source))
        values.update((name, value) for name, value in overrides.items() if value is not None)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError("; ".join(_fault_text(fault) for fault in error.errors())) from None

    @classmethod
    def _further_values(cls, _environ: Mapping[str, str]) -> Mapping[str, object]:
        """Return the values of fields that are not read from one variable each."""
        return {}


def _fault_text(fault: ErrorDetails) -> str:
    text = fault["msg"].removeprefix("Value error, ")
    if text.startswith(ENV_PREFIX):
        return text  # it names its variables itself
    return f"{ENV_PREFIX}{'.'.join(str(part) for part in fault['loc']).upper()}: {text}"


class LogSettings(EnvSettings):
    """The settings of a server role's log."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="lowest level of the lines that a role writes to stderr"
    )
    log_format: Literal["json", "text"] | None = Field(
        None, description="form of a role's log lines: json or text; by default text on a terminal, else json"
    )


# How every role and the client reach Kafka and the schema registry.


SOCKET_TIMEOUT_MS = 10_000
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


class KafkaSettings(EnvSettings):
    """How to reach Kafka, and which topics to use."""

    bootstrap_servers: str = Field("127.0.0.1:9092", description="Kafka brokers, host:port, comma-separated")
    topic_prefix: str = Field("sessionary", description="first part of every topic name", pattern=r"^[A-Za-z0-9._-]+$")
    partitions: int = Field(4, description="partitions of every topic; fixed once events exist", ge=1, le=10_000)
    security_protocol: SecurityProtocol = Field(
        "PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, in any case"
    )
    sasl_mechanism: str | None = Field(
        None,
        description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER, in any case",
        validate_default=True,
    )
    sasl_username: str | None = Field(None, description="principal's name")
    sasl_password: SecretStr | None = Field(None, description="principal's password")
    ssl_ca_location: str | None = Field(None, description="file of the certificate authority")
    schema_registry_url: str | None = Field(
        None, description="URL of the schema registry for values in Confluent's framing; needs the extra `registry`"
    )
    schema_registry_username: str | None = Field(None, description="user of the schema registry (basic authentication)")
    schema_registry_password: SecretStr | None = Field(None, description="password of the schema registry's user")
    schema_registry_ca_location: str | None = Field(
        None, description="file of the certificate authority of the schema registry; by default the system's"
    )
    librdkafka: dict[str, str] = Field(
        default_factory=dict,
        description="a further setting of librdkafka for every connection to Kafka: "
        "SESSIONARY_KAFKA_SSL_KEY_LOCATION sets ssl.key.location; see security.md",
        repr=False,
        json_schema_extra={"variable": OPTION_PREFIX + "…"},
    )

    @field_validator("security_protocol", mode="before")
    @classmethod
    def _name_protocol(cls, value: object) -> object:
        return value.strip().upper().replace("-", "_") if isinstance(value, str) else value

    @field_validator("sasl_mechanism")
    @classmethod
    def _name_mechanism(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and str(info.data.get("security_protocol", "")).startswith("SASL"):
            raise ValueError(f"security protocol {info.data['security_protocol']} needs a mechanism")
        return value.strip().upper().replace("_", "-") if value is not None else None

    @field_validator("librdkafka")
    @classmethod
    def _check_options(cls, options: dict[str, str]) -> dict[str, str]:
        check_options(options)
        return options

    @classmethod
    def _further_values(cls, environ: Mapping[str, str]) -> Mapping[str, object]:
        return {"librdkafka": read_options(environ)}

    @property
    def topics(self) -> TopicNames:
        """The topic names with the prefix."""
        return TopicNames.with_prefix(self.topic_prefix)

    def client_config(self) -> dict[str, str | int | float | bool]:
        """Return the common part of the configurations of all confluent-kafka clients.

        Keys are librdkafka's. The caller adds what its consumer, producer or admin client needs.
        """
        config: dict[str, str | int | float | bool] = {
            **self.librdkafka,
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
            # heartbeats arrive later than `outage_grace_ms` (25 s) after an outage are timed out.
            # It bounds each produce, fetch (plus fetch.wait.max.ms), commit, metadata and
            # transaction request; message.timeout.ms bounds the repeats of a produce request. It
            # may exceed transaction.timeout.ms by 100 ms at most, and a blocking call must be given
            # at least as much time. JoinGroup is not bounded by it, but by max.poll.interval.ms.
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
        """Return the common part of the configurations of all our consumers.

        They read committed records, commit nothing unless asked to, and learn where each log ends,
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


# How sinks, commands and the lag exporter reach ClickHouse.


class ClickHouseSettings(EnvSettings):
    """How to reach ClickHouse."""

    clickhouse_url: str = Field("http://127.0.0.1:8123", description="ClickHouse's HTTP interface")
    clickhouse_user: str = Field("default", description="ClickHouse user")
    clickhouse_password: SecretStr = Field(SecretStr(""), description="ClickHouse password")
    clickhouse_ca_location: str | None = Field(
        None, description="file of the certificate authority of an https ClickHouse; by default the system's"
    )
    clickhouse_database: str = Field(
        "sessionary", description="database of this pipeline; an extra pipeline has its own", pattern=r"^[A-Za-z_]\w*$"
    )

    @property
    def between_database(self) -> str:
        """The database of the pipeline's views with parameters, `v_…_between`."""
        return f"{self.clickhouse_database}_between"


# A file of settings that is read again if it changes, so that a change needs no restart.


T = TypeVar("T")
_Version = tuple[int, int, int]


class RereadFile(Generic[T]):
    """A file that is parsed again each time it changed. Belongs to one thread at a time."""

    def __init__(self, path: Path, parse: Callable[[bytes], T]) -> None:
        """`parse` raises `ValueError` that says what is wrong."""
        self.path = path
        self._parse = parse
        self._version: _Version | None = None  # of the file that was read last

    def read_if_changed(self) -> T | None:
        """Return the file's parsed value; None if it is unchanged since the last reading. Blocks.

        Raises `OSError` or `ValueError` if it cannot be used; then the next call tries again.
        """
        status = self.path.stat()
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if version == self._version:
            return None
        found = self._parse(self.path.read_bytes())
        self._version = version
        return found
