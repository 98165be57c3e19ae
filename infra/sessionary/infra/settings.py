"""Settings of the commands themselves. Each role has its own settings as well."""

from pydantic import Field, SecretStr, field_validator

from sessionary.schemas.http.control_servers import split_urls
from sessionary.schemas.settings import ClickHouseSettings, EnvSettings, LogSettings
from sessionary.sinks.settings import ArtifactSettings, IdleSettings, SinkGroupSettings


class CommandSettings(LogSettings):
    """The settings that every role and command reads; listed here for the page of settings."""


class OperatorSettings(EnvSettings):
    """Access of the operators' commands to the control API."""

    control_url: str | None = Field(
        None,
        description="control API of any processor, for example http://127.0.0.1:8600; partition and doctor use it; "
        "of several URLs with commas between them, the next one is asked if one is away",
    )
    control_ca_location: str | None = Field(
        None, description="file of the certificate authority of an https control API; by default the system's"
    )
    operator_token: SecretStr | None = Field(
        None, description="bearer token with the role operator, for partition and doctor"
    )
    quotas_url: str | None = Field(
        None, description="control API of any worker of the role quotas; doctor checks the role's partitions there"
    )

    @field_validator("control_url", "quotas_url")
    @classmethod
    def _check_urls(cls, urls: str | None) -> str | None:
        if urls is not None:
            split_urls(urls)
        return urls


class LagSettings(SinkGroupSettings, ClickHouseSettings, IdleSettings, ArtifactSettings):
    """The observed groups, the questions to ClickHouse, and the address of lag-exporter."""

    lag_interval_s: float = Field(1.0, description="time in seconds between two samples of lag-exporter", ge=0.1, le=60)
    lag_window_s: float = Field(
        60.0,
        description="period in seconds over which lag and lag-exporter compute a partition's state and rate",
        ge=2,
        le=3_600,
    )
    kpi_interval_s: float = Field(
        30.0,
        description="time in seconds between two queries of lag-exporter for key figures and disks",
        ge=1,
        le=3_600,
    )
    kpi_window_s: int = Field(
        3_600, description="period in seconds, until now, of lag-exporter's key figures", ge=60, le=31 * 86_400
    )
    integrity_interval_s: float = Field(
        300.0, description="time in seconds between two checks of integrity by lag-exporter", ge=1, le=86_400
    )
    integrity_window_s: int = Field(
        21_600,
        description="period in seconds, until now, in which lag-exporter checks transactions; integrity check: all",
        ge=60,
        le=22 * 86_400,
    )
    metrics_host: str = Field("127.0.0.1", description="address on which metrics are served")
    metrics_port: int = Field(
        9308, description="port of lag-exporter's /metrics, /healthz and /readyz", ge=1, le=65_535
    )


class TaskPagesSettings(EnvSettings):
    """The address of a task worker's pages."""

    metrics_host: str = Field("127.0.0.1", description="address on which metrics are served")
    metrics_port: int | None = Field(
        None, description="port of task-worker's /metrics, /healthz and /readyz; not served if unset", ge=1, le=65_535
    )
