"""Settings of the client, from `SESSIONARY_*` variables."""

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from sessionary.producers.errors import SpoolUnusable
from sessionary.schemas.http.control_servers import split_urls
from sessionary.schemas.settings import KafkaSettings

DeliveryPolicy = Literal["spool", "block", "drop"]
"""The treatment of an event for which the delivery queue has no room."""


_TOKEN = re.compile(r"[!-~]+")
_SERVER = re.compile(
    r"((PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+)(:(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE | re.ASCII,
)


def _plain_server(server: str) -> str:
    """Return `host:port` of a server, in the one spelling that names spool folders."""
    found = _SERVER.fullmatch(server.strip())
    assert found is not None  # it was checked
    return f"{found['host'].lower()}:{int(found['port'] or 9092)}"


def _state_folder() -> Path | None:
    """Return the default folder of spools; None without a home, for example of an unknown uid."""
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        return None
    return state / "sessionary" / "spool"


class ProducerSettings(KafkaSettings):
    """Settings for the delivery of events and the source of verdicts. Immutable.

    `ProducerSettings.from_env(delivery_policy="block")` reads each field from its variable
    (`delivery_policy` from `SESSIONARY_DELIVERY_POLICY`), except those given as arguments. Raises
    `SettingsError` for a malformed value.
    """

    disabled: bool = Field(
        default=False,
        description="turn the client off: verbs work in this process, without sending, threads, files or "
        "connections; resume, recover, sync, attach and open know this client's own sessions only",
    )
    control_url: str | None = Field(
        None,
        description="control API, for example http://127.0.0.1:8600; resume, recover, sync, attach and open need it; "
        "of several URLs with commas between them, the next one is asked if one is away",
    )
    control_ca_location: str | None = Field(
        None, description="file of the certificate authority of an https control API; by default the system's"
    )
    api_token: SecretStr | None = Field(None, description="bearer token for the control API; names the tenant")
    delivery_policy: DeliveryPolicy = Field(
        "spool", description="action on a full queue: spool (to a file, replayed after a crash), block or drop"
    )
    spool_dir: Path | None = Field(
        default_factory=_state_folder,
        description="folder of the spool files, on a disk of this machine; one subfolder, with a label beside it, per "
        "name of a cluster and prefix; in a container on a volume that outlives it. Without a usable folder the "
        "client continues with policy drop",
    )
    spool_bytes_max: int = Field(
        256 << 20, description="size of the spool; when it is full, events are dropped and reported", ge=1 << 16
    )
    queue_bytes_max: int = Field(64 << 20, description="size of the delivery queue in memory", ge=1 << 16)
    block_timeout_s: float = Field(10.0, description="longest wait of policy block", gt=0, le=600)
    delivery_timeout_s: float = Field(
        120.0, description="time after which policies block and drop give an event up; spool never does", ge=1, le=3600
    )
    verdict_timeout_s: float = Field(
        30.0, description="longest wait of resume, recover, sync, attach and open", gt=0, le=600
    )
    poll_interval_s: float = Field(
        5.0,
        description="time between two polls of the control API about all live sessions, for on_rejected, "
        "on_timed_out and on_fenced; less if a session sends heartbeats more often; 0: no polls",
        ge=0,
        le=3600,
    )
    close_timeout_s: float = Field(10.0, description="longest drain on close, exit and SIGTERM", ge=0, le=600)
    heartbeat_interval_s: float = Field(
        10.0, description="time between heartbeats; at most a sixth of a session's inactivity budget", gt=0, le=60
    )
    session_id_version: Annotated[Literal[4, 7], BeforeValidator(int)] = Field(
        4, description="new session ids: 4 random, 7 time-ordered"
    )
    quotas: bool = Field(
        default=False,
        description="make runs and sessions wait until their tenant's quota admits them; needs the control API. Turn "
        "this on where runs or sessions request slots (`sessionary rules list`). For its runs, a session that asked "
        "the control API follows the answer",
    )
    quota_wait_s: float = Field(
        600.0, description="longest wait of a run or session for its tenant's quota; then it is cancelled or ends", ge=0
    )
    model_call_limit_s: float = Field(
        600.0,
        description="longest call of a model (`session.llm`); then it fails, and a coroutine is cancelled. A call that "
        "is only longer than `model_ms` is reported as slow, and its answer kept",
        gt=0,
        le=86_400,
    )
    journal_path: Path | None = Field(None, description="NDJSON file: one line per delivered or lost event")
    artifacts_url: str | None = Field(
        None,
        description="place for results above 256 KiB: a folder, or a URL that fsspec knows (such as s3://bucket; "
        "needs the extra `artifacts`). Without a place, results that exceed an event are refused",
    )
    snapshot_cache_mb: int = Field(
        100,
        description="size of the sessions' last snapshots in memory, in MB, against which deltas are made; when it is "
        "exceeded the older half goes, and these sessions send a whole snapshot next",
        ge=1,
    )
    server_version: str = Field("1.0.0", description="version of the agent's server, for snapshots", max_length=256)
    protocol_version: str = Field(
        "2024-11-05", description="version of the protocol that the agent speaks, for snapshots", max_length=256
    )
    trace_events: bool = Field(
        default=False,
        description="make an OpenTelemetry span for each event, which processor and sinks continue; needs the extra "
        "`otel`, and an SDK that the program has set up",
    )
    inherit_in_threads: bool = Field(
        default=True,
        description="pass the current session on to threads and calls of thread pools, by wrapping Thread.start and "
        "ThreadPoolExecutor.submit once in the process",
    )
    handle_sigterm: bool = Field(
        default=True, description="turn an unhandled SIGTERM into an orderly exit (main thread only)"
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_servers(cls, servers: str) -> str:
        for server in servers.split(","):
            found = _SERVER.fullmatch(server.strip())
            if found is None or not 0 < int(found["port"] or 9092) < 1 << 16:
                raise ValueError(f"{server!r} is not host:port")
        return servers

    @field_validator("spool_dir", "journal_path", "artifacts_url", mode="before")
    @classmethod
    def _check_place(cls, place: object) -> object:
        if place == "":
            raise ValueError("it is empty, which would be the working folder; without a value unset it")
        return place

    @field_validator("spool_dir", "journal_path")
    @classmethod
    def _fix_place(cls, place: Path | None) -> Path | None:
        return None if place is None else place.absolute()  # the program may change its working folder

    @field_validator("control_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None:
            split_urls(url)
        return url

    @field_validator("api_token")
    @classmethod
    def _check_token(cls, token: SecretStr | None) -> SecretStr | None:
        token = SecretStr(token.get_secret_value().strip()) if token is not None else None  # such as a file's line
        if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
            raise ValueError("a token has visible ASCII characters only, at least one; without one unset it")
        return token

    @property
    def spool_folder(self) -> Path:
        """The subfolder of this cluster and prefix: no event is replayed to another cluster.

        Raises `SpoolUnusable` if no folder is set and the process has no home.
        """
        if self.spool_dir is None:
            raise SpoolUnusable("SESSIONARY_SPOOL_DIR is not set, and this process has no home folder")
        servers = ",".join(sorted({_plain_server(server) for server in self.bootstrap_servers.split(",")}))
        return self.spool_dir / hashlib.sha256(f"{servers}/{self.topic_prefix}".encode()).hexdigest()[:16]
