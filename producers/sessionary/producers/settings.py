"""Settings of the client, from `SESSIONARY_*` variables."""

import hashlib
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr

from sessionary.schemas.settings import KafkaSettings

DeliveryPolicy = Literal["spool", "block", "drop"]
"""What happens to an event for which the delivery queue has no room."""


def _state_folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sessionary" / "spool"


class ProducerSettings(KafkaSettings):
    """How events are delivered, and where verdicts are asked for. Immutable.

    `ProducerSettings.from_env(delivery_policy="block")` reads each field from its variable
    (`delivery_policy` from `SESSIONARY_DELIVERY_POLICY`), except those given as arguments. Raises
    `SettingsError` for a malformed value.
    """

    control_url: str | None = Field(
        None, description="control API, for example http://127.0.0.1:8600; resume, recover, sync and attach need it"
    )
    api_token: SecretStr | None = Field(None, description="bearer token for the control API; names the tenant")
    delivery_policy: DeliveryPolicy = Field(
        "spool", description="when the queue is full: spool (to a file, replayed after a crash), block or drop"
    )
    spool_dir: Path = Field(
        default_factory=_state_folder, description="folder of the spool files; one subfolder per cluster and prefix"
    )
    spool_bytes_max: int = Field(
        256 << 20, description="size of the spool; when it is full, events are dropped and reported", ge=1 << 16
    )
    queue_bytes_max: int = Field(64 << 20, description="size of the delivery queue in memory", ge=1 << 16)
    block_timeout_s: float = Field(10.0, description="longest wait of policy block", gt=0, le=600)
    delivery_timeout_s: float = Field(
        120.0, description="policies block and drop give an event up after this; spool never does", ge=1, le=3600
    )
    verdict_timeout_s: float = Field(30.0, description="longest wait of resume, recover, sync and attach", gt=0, le=600)
    poll_interval_s: float = Field(
        5.0,
        description="time between two questions to the control API about all live sessions, for on_refused, "
        "on_timed_out and on_fenced; 0 asks none",
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
    rules: int = Field(
        1,
        description="version of the rules that every partition has; from 2 on, a state update is one event, not three. "
        "Raise it after these rules were activated. A session that asked the control API goes by its answer",
        ge=1,
    )
    journal_path: Path | None = Field(None, description="NDJSON file: one line per delivered or lost event")
    trace_events: bool = Field(
        default=False,
        description="make an OpenTelemetry span for each event, which processor and sinks continue; needs the extra "
        "`otel`, and an SDK that the program has set up",
    )
    handle_sigterm: bool = Field(
        default=True, description="turn an unhandled SIGTERM into an orderly exit (main thread only)"
    )

    @property
    def spool_folder(self) -> Path:
        """The subfolder of this cluster and prefix: no event is replayed to another cluster."""
        servers = ",".join(sorted(self.bootstrap_servers.replace(" ", "").split(",")))
        return self.spool_dir / hashlib.sha256(f"{servers}/{self.topic_prefix}".encode()).hexdigest()[:16]


__all__ = ["DeliveryPolicy", "ProducerSettings"]
