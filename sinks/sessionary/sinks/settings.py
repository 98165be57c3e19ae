"""Settings of the sinks."""

from typing import Final

from pydantic import Field

from sessionary.schemas.settings import ClickHouseSettings, EnvSettings, KafkaSettings

# `v_integrity` compares rows of the last 22 days by the time of their transaction, and Kafka may
# have held a record for a week before that.
_DAYS_MIN: Final = 30
# 50 years: the end of a later period would not fit ClickHouse's DateTime, which ends in 2106.
_DAYS_MAX: Final = 18_262


class IdleSettings(EnvSettings):
    """The settings of records that may wait, for the sinks and their monitoring."""

    # At most what `v_integrity` allows for.
    sink_idle_seconds: float = Field(
        60.0,
        description="longest time in seconds that ticks and heartbeats (in batches: transactions of ticks only) "
        "wait for their block without other records; 0: they are written like other records",
        ge=0,
        le=60,
    )


class ArtifactSettings(EnvSettings):
    """The settings of the sweep of artifacts, and of its monitoring."""

    retention_artifacts_days: int = Field(
        30,
        description="days after which an artifact is marked as deleted and no longer served; its body is removed a "
        "week later; applied by artifacts sweep",
        ge=7,
        le=30,
    )


class RetentionSettings(ClickHouseSettings, ArtifactSettings):
    """Retention of rows that no law regulates. The rest follows from the data's classes.

    The defaults are this product's choice; no requirement names them.
    """

    retention_history_days: int = Field(
        365,
        description="days for which history keeps events without a class of data; applied by db migrate",
        ge=_DAYS_MIN,
        le=_DAYS_MAX,
    )
    retention_idle_days: int = Field(
        30,
        description="days for which history keeps ticks and heartbeats, except those of financial and medical "
        "sessions; applied by db migrate",
        ge=_DAYS_MIN,
        le=365,
    )
    retention_batches_days: int = Field(
        2_557,
        description="days for which transactions and acknowledgements are kept: latencies and integrity of older "
        "audit records are unknown; applied by db migrate",
        ge=_DAYS_MIN,
        le=_DAYS_MAX,
    )
    retention_runs_days: int = Field(
        90,
        description="days for which the table of runs keeps events of runs and steps; events of tool "
        "calls are kept for 30 days; history keeps all these events for longer; applied by db migrate",
        ge=_DAYS_MIN,
        le=90,
    )

    @property
    def days(self) -> dict[str, int]:
        """The tables' settings by their names in the table `retention_days`."""
        return {
            "history": self.retention_history_days,
            "idle": self.retention_idle_days,
            "batches": self.retention_batches_days,
            "runs": self.retention_runs_days,
        }


class SinkGroupSettings(KafkaSettings):
    """Which consumer groups the sinks of a pipeline use."""

    pipeline: str | None = Field(
        None,
        description="name of an extra pipeline: its sinks use separate consumer groups; give it a separate database",
        pattern=r"^[A-Za-z0-9_-]+$",
    )

    def group_id(self, kind: str) -> str:
        """Return the consumer group of the sink `kind`."""
        return f"{self.topic_prefix}.sink.{kind}" + (f".{self.pipeline}" if self.pipeline else "")


class SinkSettings(SinkGroupSettings, ClickHouseSettings, IdleSettings):
    """Where a sink reads and writes, and how much it collects for one insert."""

    instance: str | None = Field(
        None,
        description="unique name of this process among its kind: after a restart it gets its partitions back at once",
        pattern=r"^[A-Za-z0-9._-]+$",
    )
    sink_flush_rows: int = Field(
        50_000, description="rows of a partition after which a block is written", ge=1, le=500_000
    )
    sink_flush_bytes: int = Field(16 << 20, description="bytes of a partition after which a block is written", ge=1)
    sink_flush_seconds: float = Field(
        0.5,
        description="longest time in seconds that a row waits for its block; four times as long if more records wait",
        gt=0,
        le=60,
    )
    sink_accept_gaps: str = Field(
        "",
        description="partitions whose lost records a sink gives up, such as 0,2: it continues where the log begins",
        pattern=r"^(\d+(,\d+)*)?$",
    )
    sink_accept_topics: str = Field(
        "",
        description="ids of topics that are copies of the former ones, with the same offsets; separated by commas: "
        "a sink continues there at its offset",
        pattern=r"^([^,\s]+(,[^,\s]+)*)?$",
    )
    sink_session_timeout_ms: int = Field(
        8_000,
        description="time without a heartbeat after which Kafka gives a sink's partitions to another one",
        ge=6_000,
    )
    sink_insert_timeout_s: int = Field(60, description="longest time in seconds that one insert may take", ge=1, le=240)
    metrics_host: str = Field("127.0.0.1", description="address on which metrics are served")
    metrics_port: int | None = Field(
        None, description="port of /metrics, /healthz and /readyz; not served if unset", ge=1, le=65_535
    )

    @property
    def accepted_topics(self) -> frozenset[str]:
        """The ids of `sink_accept_topics`."""
        return frozenset(self.sink_accept_topics.split(",")) - {""}

    @property
    def accepted_gaps(self) -> frozenset[int]:
        """The partitions of `sink_accept_gaps`."""
        return frozenset(int(number) for number in self.sink_accept_gaps.split(",") if number)
