"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.clickhouse import ClickHouse
from sessionary.infra.environment import stack_environment
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings

JsonOption = Annotated[bool, typer.Option("--json", help="JSON lines, also on a terminal.")]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder of a local stack; else SESSIONARY_* variables, else ./.sessionary.",
        file_okay=False,
        show_default=False,
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many rows.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Of this tenant only.", show_default=False)]


def kafka_settings(data: Path | None) -> KafkaSettings:
    """Return how to reach the stack's Kafka."""
    return KafkaSettings.from_env(stack_environment(data))


def clickhouse_settings(data: Path | None) -> ClickHouseSettings:
    """Return how to reach the stack's ClickHouse."""
    return ClickHouseSettings.from_env(stack_environment(data))


def clickhouse(data: Path | None) -> ClickHouse:
    """Return a client of the stack's ClickHouse."""
    return ClickHouse(clickhouse_settings(data))


__all__ = [
    "DataOption",
    "JsonOption",
    "LimitOption",
    "TenantOption",
    "clickhouse",
    "clickhouse_settings",
    "kafka_settings",
]
