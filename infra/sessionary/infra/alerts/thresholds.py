"""Thresholds and times of the alert rules; `alerts.toml` explains each, and has the defaults."""

import tomllib
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sessionary.schemas.errors import SettingsError


class Thresholds(BaseModel):
    """The thresholds of the alert rules, and how long an excess must last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runbook_url: str
    processor_job: str
    sink_job: str
    lag_job: str
    page_for_s: int = Field(ge=0)
    ticket_for_s: int = Field(ge=0)
    window_s: int = Field(ge=2)
    lag_s: float = Field(gt=0)
    lag_records: int = Field(ge=0)
    cleanup_lag_s: float = Field(gt=0)
    task_lag_s: float = Field(gt=0)
    timers_due: int = Field(ge=0)
    timer_lateness_s: float = Field(gt=0)
    clock_ahead_s: float = Field(gt=0)
    security_rejections: int = Field(ge=0)
    spool_bytes: int = Field(ge=0)
    sessions_over_context_limit: int = Field(ge=0)
    deduplication_window_ratio: float = Field(gt=0)
    disk_free_ratio: float = Field(ge=0, le=1)
    disk_free_bytes: int = Field(ge=0)
    stored_bytes: int = Field(ge=0)
    tenant_bytes: int = Field(ge=0)
    integrity_age_s: float = Field(gt=0)
    artifacts_overdue: int = Field(ge=0)
    cleanup_s: float = Field(gt=0)
    reclaim_ratio: float = Field(ge=0, le=1)
    transition_latency_s: float = Field(gt=0)
    audit_write_latency_s: float = Field(gt=0)
    context_bytes: int = Field(gt=0)
    audit_io_ratio: float = Field(ge=0, le=1)
    retry_cost_ratio: float = Field(ge=0, le=1)
    compliance_ratio: float = Field(ge=0, le=1)


def read_thresholds(path: Path | None = None, **changes: float | str) -> Thresholds:
    """Return the defaults, changed by a TOML file and by `changes`.

    Raises `SettingsError` with every value that is wrong, or if the file is no TOML; `OSError` if
    it cannot be read.
    """
    values = tomllib.loads(resources.files(__package__).joinpath("alerts.toml").read_text("utf-8"))
    try:
        if path is not None:
            values |= tomllib.loads(path.read_text("utf-8"))
        return Thresholds.model_validate(values | changes)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise SettingsError("; ".join(faults)) from None
    except ValueError as error:
        raise SettingsError(f"{path} is no TOML: {error}") from None
