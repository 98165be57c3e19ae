"""`sessionary lag`: how far each consumer group is behind."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sessionary.infra.cli.options import DataOption, JsonOption
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_rows
from sessionary.infra.environment import stack_environment
from sessionary.infra.settings import LagSettings
from sessionary.schemas.errors import Unavailable

if TYPE_CHECKING:
    from sessionary.infra.lag.lag_monitor import LagMonitor, LagReport
    from sessionary.infra.lag.lag_tracker import GroupLag, PartitionLag
    from sessionary.infra.lag.metrics import RowDelay, RowDelayWatch

_READ_S = 0.8  # a single report has no second chance
_DELAYS_S = 0.5  # after the report; the question went out before it
_COLUMNS = (
    *("group", "group_state", "partitions", "state", "lag", "lag_s", "records_per_s", "catch_up_s"),
    *("newest_record_age_s", "row_delay_s", "topic"),
)
_PARTITION_COLUMNS = ("group", "partition", "committed", "log_end", *_COLUMNS[3:])


def lag_command(
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C, with states and rates.")] = False,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="A row per partition also on a terminal; JSON lines always have it.")
    ] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the lag of each consumer group: records, seconds, time to catch up.

    A lag counts from the committed offset; a partition without a commit counts in full. States and
    rates need a minute of observation: see --watch.
    """
    from sessionary.infra.lag.lag_monitor import LagMonitor
    from sessionary.infra.lag.metrics import RowDelayWatch

    settings = LagSettings.from_env(stack_environment(data))
    delays = RowDelayWatch(settings)
    delays.start()
    monitor = LagMonitor(settings, settings.lag_window_s, settings.sink_idle_seconds)
    try:
        if watch:
            _watch_lag(monitor, delays, settings, by_partition=partitions, as_json=as_json)
            return
        report = monitor.take_report(_READ_S)
        delays.wait_answer(_DELAYS_S)
        _show_report(report, delays.answer, by_partition=partitions, as_json=as_json)
        if delays.answer is None:
            print_message(f"no delays of rows: {delays.fault or 'ClickHouse has not answered in time'}")
    finally:
        monitor.close()
        delays.stop()


def _watch_lag(
    monitor: "LagMonitor", delays: "RowDelayWatch", settings: LagSettings, *, by_partition: bool, as_json: bool
) -> None:
    """Show a report every second until Ctrl-C; a terminal is redrawn."""
    try:
        while True:
            began_s = time.monotonic()
            report, away = None, ""
            try:
                report = monitor.take_report()
            except Unavailable as error:
                away = str(error)
            if not wants_json(as_json):
                Console().clear()
                print_message(f"{_instant(time.time())}  group names begin with {settings.topic_prefix}")
            if report is not None:
                _show_report(report, delays.answer, by_partition=by_partition, as_json=as_json)
            elif wants_json(as_json):
                show_rows([{"at": _instant(time.time()), "state": "broker_away", "detail": away}], as_json=True)
            else:
                print_message(away)
            time.sleep(max(0.0, began_s + settings.lag_interval_s - time.monotonic()))
    except KeyboardInterrupt:
        return


def _show_report(
    report: "LagReport", delays: "Sequence[RowDelay] | None", *, by_partition: bool, as_json: bool
) -> None:
    from sessionary.infra.lag.lag_tracker import sum_groups

    delay_s = {delay.table: delay.max_s for delay in delays or ()}
    if wants_json(as_json):
        at = _instant(report.at_s)
        rows = ({"at": at, **_lag_row(lag, delay_s)} for lag in report.partitions)
        show_rows(rows, as_json=True)
    elif by_partition:
        rows = (_lag_row(lag, delay_s) for lag in report.partitions)
        show_rows(map(_rounded_row, rows), as_json=False, columns=_PARTITION_COLUMNS)
    else:
        rows = (_lag_row(lag, delay_s) for lag in sum_groups(report.partitions))
        show_rows(map(_rounded_row, rows), as_json=False, columns=_COLUMNS)


def _lag_row(lag: "PartitionLag | GroupLag", delay_s: Mapping[str, float]) -> dict[str, Json]:
    return {**lag._asdict(), "row_delay_s": delay_s.get(_table_of(lag.group))}


def _table_of(group: str) -> str:
    """Return the table that a sink's group writes; any text for other groups."""
    return group.rpartition(".sink.")[2]


def _rounded_row(row: Mapping[str, Json]) -> dict[str, Json]:
    """Return a row for a terminal: seconds and rates with one decimal, - for unknown values."""
    return {
        name: "-" if value is None else f"{value:.1f}" if isinstance(value, float) else value
        for name, value in row.items()
    }


def _instant(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
