"""Settings of a processor."""

import os
import socket
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from sessionary.schemas.errors import SettingsError, cause_text
from sessionary.schemas.settings import ENV_PREFIX, KafkaSettings
from sessionary.schemas.signatures import SigningKeys, parse_signing_keys
from sessionary.stream_processors.access import Caller, parse_tokens

_HEARTBEAT_MS_MAX = 500
SIGNING_KEYS = f"{ENV_PREFIX}SIGNING_KEYS"
SIGNING_KEYS_FILE = f"{ENV_PREFIX}SIGNING_KEYS_FILE"


class ProcessorSettings(KafkaSettings):
    """Settings of one worker: its place in the group, its state, its control API."""

    instance: str | None = Field(
        None,
        description="stable name of this worker; after a stop the group waits one session time-out for its return; "
        "unique in the group",
        pattern=r"^[A-Za-z0-9._-]{1,128}$",
    )
    store: Literal["memory", "rocksdb"] = Field("memory", description="store of the sessions' state: memory or rocksdb")
    state_dir: Path | None = Field(None, description="folder of the RocksDB store; by default a temporary one")
    commit_interval_ms: int = Field(
        30,
        description="least time between the starts of a partition's transactions, and 4 ms for each busy partition of "
        "the worker, up to 100 ms, or 1 s if transactions take long; 0 = back to back",
        ge=0,
        le=1_000,
    )
    tick_commit_interval_ms: int = Field(
        60_000,
        description="time after the partition's last transaction at which ticks without effect are committed, or "
        "with the next event; 0 = at once",
        ge=0,
        le=3_600_000,
    )
    session_timeout_ms: int = Field(6_000, description="silence after which the group expels a worker", ge=1_000)
    outage_ms: int = Field(5_000, description="time without a record after which a partition has had an outage", ge=1)
    outage_grace_ms: int = Field(25_000, description="time after an outage in which no deadline fires", ge=0)
    clock_ahead_s_max: float = Field(
        60.0, description="lead of a record over the worker's clock beyond which its partition halts", gt=0
    )
    faust_agents: str | None = Field(
        None,
        description="function that registers Faust agents in this worker, as `package.module:function`; "
        "the same for every worker of the group",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
    )
    api_host: str = Field("127.0.0.1", description="listening address of the control API")
    api_port: int = Field(8600, description="port of the control API; 0 = no API", ge=0, le=65_535)
    api_followers_max: int = Field(
        500,
        description="limit of the followers' streams of this worker; further ones are answered with 503",
        ge=0,
        le=100_000,
    )
    api_past_states_max: int = Field(
        10,
        description="number of sessions' states at a point that this worker keeps in memory after it told them",
        ge=0,
        le=1_000,
    )
    api_past_states_seconds: float = Field(
        3_600, description="time for which it keeps each of them", ge=0, le=86_400, allow_inf_nan=False
    )
    api_tls_certificate: Path | None = Field(
        None, description="PEM file of the control API's certificate and its chain; with it the API is HTTPS only"
    )
    api_tls_key: Path | None = Field(
        None, description="PEM file of the certificate's key, not encrypted; by default the certificate's file"
    )
    control_ca_location: str | None = Field(
        None, description="file of the certificate authority of an https control API; by default the system's"
    )
    api_advertised_url: str | None = Field(
        None, description="URL at which other workers reach this API; by default the listening address"
    )
    api_tokens: dict[str, Caller] = Field(
        default_factory=dict,
        description="JSON object: for each bearer token its tenant, or {tenant, principal, roles}; "
        "a role is reader (default) or operator",
        repr=False,
    )
    api_tokens_file: Path | None = Field(
        None, description="JSON file of tokens in the form of SESSIONARY_API_TOKENS, read again if it changes"
    )

    signing_keys: dict[str, str] = Field(
        default_factory=dict,
        description="JSON object: the secret of each signing key by its id; the first signs what only server roles "
        "may write, all verify; the same for every worker",
        repr=False,
    )
    signing_keys_file: Path | None = Field(
        None,
        description="JSON file of signing keys in the form of SESSIONARY_SIGNING_KEYS, read again if it changes; "
        "`sessionary topics apply` makes it if it is missing",
    )

    @field_validator("signing_keys", mode="before")
    @classmethod
    def _parse_signing_keys(cls, value: object) -> dict[str, str]:
        return parse_signing_keys(value) if value else {}

    @classmethod
    def _further_values(cls, environ: Mapping[str, str]) -> Mapping[str, object]:
        values = super()._further_values(environ)
        path = environ.get(SIGNING_KEYS_FILE)
        if path is None:
            return values
        if SIGNING_KEYS in environ:
            raise SettingsError(f"{SIGNING_KEYS} and {SIGNING_KEYS_FILE} are both set: set one of them")
        try:
            keys = parse_signing_keys(Path(path).read_bytes())
        except FileNotFoundError:
            raise SettingsError(
                f"{SIGNING_KEYS_FILE}: {path} does not exist; `sessionary topics apply` makes it"
            ) from None
        except (OSError, ValueError) as error:
            raise SettingsError(f"{SIGNING_KEYS_FILE}: {path}: {cause_text(error)}") from None
        return {**values, "signing_keys": keys}

    @field_validator("api_tokens", mode="before")
    @classmethod
    def _parse_tokens(cls, value: object) -> dict[str, Caller]:
        return parse_tokens(value)

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        if self.api_tls_key is not None and self.api_tls_certificate is None:
            raise ValueError(
                "SESSIONARY_API_TLS_KEY: SESSIONARY_API_TLS_CERTIFICATE is not set; a key needs its certificate"
            )
        return self

    @cached_property
    def keys(self) -> SigningKeys:
        """The keys that sign and verify what only server roles may write; one object for all."""
        return SigningKeys(self.signing_keys)

    @property
    def group_id(self) -> str:
        """The consumer group of a pipeline's workers; their transactional ids begin with it."""
        return processor_group(self.topic_prefix)

    def opening_config(self) -> dict[str, str | int | float | bool]:
        """Return the settings of clients that open a partition, besides those of all clients.

        A new client drops its connection to the bootstrap server once the server has named the
        brokers, and waits this long before it connects to one of them, which is mostly the same
        server: by default 100 ms, less a random part. The wait doubles with each failure.
        """
        return {"reconnect.backoff.ms": 10}

    def reader_config(self) -> dict[str, str | int | float | bool]:
        """Return the configuration of a consumer outside of any group. Keys are librdkafka's.

        It reads committed records and reports how far it read each log. If the log does not hold a
        position, that is an error. The caller adds how much is fetched ahead.
        """
        return {
            **self.reader_config_of(f"{self.group_id}.reader"),
            "auto.offset.reset": "error",
            # A fetch over idle partitions waits this long before others are fetched; by default
            # half a second.
            "fetch.wait.max.ms": 10,
            # How long a partition with a full queue rests. The default of 1 s capped a backlog at
            # some 36,000 records a second.
            "fetch.queue.backoff.ms": 5,
            # A batch that was damaged on a disk or on the way is an error, not other records.
            "check.crcs": True,
        }

    @property
    def heartbeat_ms(self) -> int:
        """The interval of heartbeats: a third of the session time-out, but half a second at most.

        The answer to a heartbeat notifies a worker that the group rebalances.
        """
        return min(_HEARTBEAT_MS_MAX, self.session_timeout_ms // 3)

    @property
    def worker_name(self) -> str:
        """This worker's name in ticks and batch records."""
        return self.instance or f"{socket.gethostname()}-{os.getpid()}"

    @property
    def api_url(self) -> str:
        """The URL of this worker's API for other workers; its port is 0 if there is no API."""
        scheme = "http" if self.api_tls_certificate is None else "https"
        return self.api_advertised_url or f"{scheme}://{self.api_host}:{self.api_port}"


def processor_group(topic_prefix: str) -> str:
    """Return the consumer group of a pipeline's processors."""
    return f"{topic_prefix}.processor"


def quotas_group(topic_prefix: str) -> str:
    """Return the consumer group of the workers of the role quotas."""
    return f"{topic_prefix}.quotas"
