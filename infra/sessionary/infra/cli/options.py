"""Options that several commands share, and the clients and settings that follow from them."""

from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.environment import stack_environment
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines, also on a terminal.")]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder of a local stack. Default: the SESSIONARY_* variables, else ./.sessionary.",
        file_okay=False,
        show_default=False,
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Maximum number of rows.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.", show_default=False)]


def kafka_settings(data: Path | None) -> KafkaSettings:
    """Return the settings of the stack's Kafka. Raises `SettingsError`."""
    return KafkaSettings.from_env(stack_environment(data))


def clickhouse_settings(data: Path | None) -> ClickHouseSettings:
    """Return the settings of the stack's ClickHouse. Raises `SettingsError`."""
    return ClickHouseSettings.from_env(stack_environment(data))


def clickhouse_client(data: Path | None) -> ClickHouseClient:
    """Return a client of the stack's ClickHouse. Raises `SettingsError`."""
    return ClickHouseClient(clickhouse_settings(data))


def control_api_client(data: Path | None) -> ControlApiClient:
    """Return a client of the control API, with the operator's token. Raises `SettingsError`."""
    return ControlApiClient(OperatorSettings.from_env(stack_environment(data)))
