"""Settings of the sinks."""

from pydantic import Field

from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings


class SinkSettings(KafkaSettings, ClickHouseSettings):
    """Where a sink reads and writes, and how much it gathers before it does."""

    pipeline: str | None = Field(
        None,
        description="name of an extra pipeline: its sinks form groups of their own; give it a database of its own too",
        pattern=r"^[A-Za-z0-9_-]+$",
    )
    instance: str | None = Field(
        None,
        description="name of this process among its kind: a restart under the same name gets its partitions at once",
        pattern=r"^[A-Za-z0-9._-]+$",
    )
    sink_flush_rows: int = Field(
        50_000, description="rows of a partition that are written as one block", ge=1, le=500_000
    )
    sink_flush_bytes: int = Field(16 << 20, description="bytes of a partition that are written as one block", ge=1)
    sink_flush_seconds: float = Field(
        0.5,
        description="longest time a row waits for its block; four times as long while more waits in the log",
        gt=0,
        le=60,
    )
    sink_session_timeout_ms: int = Field(
        8_000, description="after this long without a sign a sink is dead, and its partitions go to another", ge=6_000
    )
    sink_insert_timeout_s: int = Field(60, description="longest time that one insert may take", ge=1, le=240)
    metrics_host: str = Field("127.0.0.1", description="address on which metrics are served")
    metrics_port: int | None = Field(
        None, description="port of /metrics and /healthz; none = not served", ge=1, le=65_535
    )

    def group(self, kind: str) -> str:
        """Return the consumer group of the sink `kind`."""
        return f"{self.topic_prefix}.sink.{kind}" + (f".{self.pipeline}" if self.pipeline else "")


__all__ = ["SinkSettings"]
