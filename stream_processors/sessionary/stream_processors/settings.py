"""Settings of a processor."""

import json
import os
import socket
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from sessionary.schemas.settings import KafkaSettings


class ProcessorSettings(KafkaSettings):
    """How one processor works: its place in the group, its state, its control API."""

    instance: str | None = Field(
        None,
        description="stable name of this worker: the group then waits for its return for one session time-out; "
        "two workers must never share one",
        pattern=r"^[A-Za-z0-9._-]{1,128}$",
    )
    store: Literal["memory", "rocksdb"] = Field("memory", description="where session state lives: memory or rocksdb")
    state_dir: Path | None = Field(None, description="folder of the RocksDB store; a temporary one where not given")
    commit_interval_ms: int = Field(
        30, description="a partition's transactions begin at least this far apart; 0 = back to back", ge=0, le=1_000
    )
    session_timeout_ms: int = Field(6_000, description="the group gives up a silent worker after this", ge=1_000)
    hole_ms: int = Field(5_000, description="a partition without a record for longer than this had an outage", ge=1)
    quiet_ms: int = Field(25_000, description="after an outage no deadline fires for this long", ge=0)
    api_host: str = Field("127.0.0.1", description="address the control API listens on")
    api_port: int = Field(8600, description="port of the control API; 0 = no API", ge=0, le=65_535)
    api_advertised_url: str | None = Field(
        None, description="where other workers reach this one's API; the listening address where not given"
    )
    api_tokens: dict[str, str] = Field(
        default_factory=dict, description="JSON object of bearer tokens and their tenants", repr=False
    )

    @field_validator("api_tokens", mode="before")
    @classmethod
    def _tokens(cls, value: object) -> object:
        """Read the JSON text that a variable holds. The error must not repeat the tokens."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("must be a JSON object {token: tenant}") from None

    def client_config(self) -> dict[str, str | int | float | bool]:
        """Return the connection part of a configuration; a broker that comes back is found within half a second."""
        return {**super().client_config(), "reconnect.backoff.max.ms": 500}

    @property
    def group_id(self) -> str:
        """The consumer group of all processors below one prefix; the first part of their transactional ids."""
        return f"{self.topic_prefix}.processor"

    @property
    def heartbeat_ms(self) -> int:
        """How often this worker tells the group that it lives: a third of the session time-out."""
        return self.session_timeout_ms // 3

    @property
    def worker_name(self) -> str:
        """The name in ticks and batch records."""
        return self.instance or f"{socket.gethostname()}-{os.getpid()}"

    @property
    def api_url(self) -> str:
        """Where other workers send a request that this one must answer; port 0 where there is no API."""
        return self.api_advertised_url or f"http://{self.api_host}:{self.api_port}"


__all__ = ["ProcessorSettings"]
