"""The roles, one process each: what `up` runs as its parts, and what production runs one by one.

Each is configured by `SESSIONARY_*` variables and stops in order on SIGTERM and Ctrl-C.
"""

import logging
import os
import signal
import threading
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.output import remark
from sessionary.infra.settings import CommandSettings

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class SinkName(StrEnum):
    """The sinks."""

    AUDIT = "audit"
    HISTORY = "history"
    REJECTED = "rejected"
    BATCHES = "batches"


def _log() -> None:
    logging.basicConfig(level=CommandSettings.from_env().log_level, format=_LOG_FORMAT)


def broker(
    data: Annotated[Path, typer.Option("--data", help="Folder of the broker.", file_okay=False)] = Path(
        ".sessionary/broker"
    ),
    port: Annotated[int | None, typer.Option("--port", help="Default: the folder's last one, or a free one.")] = None,
) -> None:
    """Run one Kafka node on loopback, for development."""
    from sessionary.infra.local.kafka.broker import run_broker

    run_broker(data, port, remark)


def clickhouse(
    data: Annotated[Path, typer.Option("--data", help="Folder of the engine.", file_okay=False)] = Path(
        ".sessionary/clickhouse"
    ),
    port: Annotated[int, typer.Option("--port", min=1, max=65_535)] = 8123,
) -> None:
    """Serve a ClickHouse engine over HTTP on loopback, for development."""
    from sessionary.infra.local.clickhouse.endpoint import PASSWORD_VARIABLE, run_clickhouse

    run_clickhouse(data, port, os.environ.get(PASSWORD_VARIABLE))


def processor() -> None:
    """Judge events: state, audit trail, timeouts, control API."""
    from sessionary.stream_processors.settings import ProcessorSettings
    from sessionary.stream_processors.worker import run_processor

    _log()
    run_processor(ProcessorSettings.from_env())


def sink(kind: Annotated[SinkName, typer.Argument(help="Which topic to carry into ClickHouse.")]) -> None:
    """Carry one topic into ClickHouse, each row once."""
    from sessionary.sinks.app import run_sink
    from sessionary.sinks.settings import SinkSettings

    _log()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    run_sink(kind.value, SinkSettings.from_env(), stop, may_exit=True)


__all__ = ["SinkName", "broker", "clickhouse", "processor", "sink"]
