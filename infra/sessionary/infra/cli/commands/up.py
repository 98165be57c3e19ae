"""`sessionary up`: run the local stack until Ctrl-C. `demo` uses the same context manager."""

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from sessionary.infra.cli.commands.admin import ShellName, shell_lines
from sessionary.infra.cli.output import Progress, command_name, print_line, print_message, wants_json
from sessionary.infra.cli.tables import show_object
from sessionary.infra.environment import DEFAULT_DATA, client_environment
from sessionary.infra.local.schedule import PartState
from sessionary.infra.local.supervisor import PartChange
from sessionary.schemas.settings import LogSettings

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

    from sessionary.infra.stack import Stack


# Reports the processes of the local stack: to people on stderr, and to a log.


class PartReports:
    """Prints a line for each exit of a process, with its time (UTC).

    A process that lacks a set-up is started repeatedly. This is reported once, then only if the
    reason changes, and when the process works.
    """

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """`clock` returns the time of day, in UTC."""
        self._clock = clock
        self._missing: dict[str, str] = {}  # by part, as it was reported

    def report_change(self, change: PartChange) -> None:
        """Print a line about a change of state, if it needs one. Does not block."""
        name = change.name
        if change.state is PartState.READY and self._missing.pop(name, None) is not None:
            self._print_line(f"{name} is ready now")
        if change.exit_code is None or change.wait_s is None:
            return
        if change.missing is None:
            self._missing.pop(name, None)
            self._print_line(f"{name} ended with code {change.exit_code}; restarting it in {change.wait_s:g} s")
            return
        from sessionary.schemas.telemetry.role_logs import read_end_reason

        missing = read_end_reason(change.missing)
        if self._missing.get(name) != missing:
            self._missing[name] = missing
            again = "it is tried again from time to time; only a change is reported"
            self._print_line(f"{name} ended with code {change.exit_code}: {missing}; {again}")

    def _print_line(self, text: str) -> None:
        print_message(f"{self._clock():%Y-%m-%dT%H:%M:%SZ} {text}")


def change_reporter(log_folder: Path) -> Callable[[PartChange], None]:
    """Return a reporter of each part's changes: all to a log, the important ones to people.

    The log is `<log_folder>/supervisor.log`. If `SESSIONARY_LOG_FORMAT` is json, the log is stderr,
    and there are no lines for people. The log begins with the first change. Raises `SettingsError`.
    """
    from sessionary.schemas.telemetry.role_logs import configure_role_logs, role_logger

    settings = LogSettings.from_env()
    as_json = settings.log_format == "json"
    reports = PartReports()

    @cache
    def begin_log() -> "BoundLogger":
        stream = sys.stderr if as_json else (log_folder / "supervisor.log").open("a", encoding="utf-8")
        in_form = settings.model_copy(update={"log_format": "json" if as_json else "text"})
        configure_role_logs("supervisor", settings=in_form, stream=stream)
        return role_logger(__name__)

    def report_change(change: PartChange) -> None:
        log = begin_log()
        fields: dict[str, object] = {"part": change.name, "pid": change.pid}
        if change.exit_code is not None and change.wait_s is not None:
            fields |= {"exit_code": change.exit_code, "wait_s": change.wait_s}
            log.warning("%(part)s ended with code %(exit_code)d; it is restarted in %(wait_s)g s", **fields)
        else:
            log.info("%(part)s is %(state)s", state=change.state.value, **fields)
        if not as_json:
            reports.report_change(change)

    return report_change


START_S_MAX = 300.0  # on a busy machine; an idle one needs half a minute
_PORT = "Default: the folder's last port, else a free one."
PortOption = Annotated[int | None, typer.Option(min=1, max=65_535, help=_PORT, show_default=False)]
BrokerPortOption = Annotated[
    int | None,
    typer.Option(min=1, max=65_535, help=f"{_PORT} Three brokers also take the next two.", show_default=False),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65_535,
        help="First of five ports for the metrics of sinks and lag exporter; six with --quotas. Default: the folder's "
        "last ports, else free ones.",
        show_default=False,
    ),
]


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def running_stack(stack: "Stack") -> Iterator[None]:
    """Run the stack inside the context.

    SIGTERM and Ctrl-C raise `KeyboardInterrupt`. Both signals are ignored while the stack stops.
    """
    previous = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        stack.start()
        yield
    finally:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stack.stop()
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, previous)


def activate_newest_rules(stack: "Stack") -> None:
    """Activate the newest rules if the stack is new: no older processor ever served it.

    With the role quotas, these rules make runs request slots, and sessions too, if the file limits
    sessions; tokens count if the file limits tokens. Blocks for some seconds. Raises as
    `ControlApiClient` does.
    """
    if stack.is_new:
        from sessionary.infra.control_api_client import ControlApiClient
        from sessionary.infra.settings import OperatorSettings
        from sessionary.schemas.rules import NEWEST_RULES

        limits = stack.environ["SESSIONARY_QUOTAS_FILE"] if stack.has_quotas else None
        quotas, of_sessions, of_tokens = None if limits is None else True, None, None
        if limits is not None:
            from sessionary.stream_processors.quotas.settings import LimitsFile

            found = LimitsFile(Path(limits))
            of_sessions, of_tokens = found.limits_sessions or None, found.limits_tokens or None
        client = ControlApiClient(OperatorSettings.from_env(stack.environ))
        client.activate_rules(NEWEST_RULES.version, quotas=quotas, session_quotas=of_sessions, token_quotas=of_tokens)
        asked = f", and runs{' and sessions' if of_sessions else ''} ask for quotas" if quotas else ""
        asked += ", and tokens count for them" if of_tokens else ""
        print_message(f"rules {NEWEST_RULES.version} were activated{asked}: the stack is new")


def up_command(
    data: Annotated[
        Path, typer.Option("--data", help="Folder of the stack's data and logs; it is kept.", file_okay=False)
    ] = DEFAULT_DATA,
    port_broker: BrokerPortOption = None,
    port_clickhouse: PortOption = None,
    port_api: PortOption = None,
    port_metrics: MetricsPortOption = None,
    partitions: Annotated[int, typer.Option(min=1, max=64, help="Partitions of each topic, for a new stack.")] = 4,
    brokers: Annotated[
        int | None,
        typer.Option(
            help="1, or 3 that replicate each record. Default: the folder's number, else 1.", show_default=False
        ),
    ] = None,
    quotas: Annotated[
        Path | None,
        typer.Option(
            "--quotas",
            metavar="FILE",
            dir_okay=False,
            help="Run the role quotas with this JSON file of the tenants' limits. Runs of a new stack request slots, "
            "and so do sessions if the file limits them; tokens count if the file limits tokens. "
            "Default: the folder's last file.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the variables as one JSON object.")] = False,
) -> None:
    """Run Kafka, ClickHouse, processor, sinks and lag exporter until Ctrl-C. The data is kept.

    A process that ends is restarted. Other commands find the stack by DATA/env.json: pass --data
    DATA, or run them in the folder that holds .sessionary. `sessionary env` prints the
    variables for a shell.
    """
    from sessionary.infra.stack import Ports, Stack

    progress = Progress()
    ports = Ports(port_broker, port_clickhouse, port_api, port_metrics)
    stack = Stack(
        data,
        ports=ports,
        partitions=partitions,
        brokers=brokers,
        quotas_file=quotas,
        on_change=change_reporter(data / "logs"),
    )
    announced = False
    try:
        with running_stack(stack):
            progress("starting broker, ClickHouse, processor and sinks (about a minute the first time)")
            stack.wait_ready(START_S_MAX)
            progress.clear()
            activate_newest_rules(stack)
            _print_addresses(stack.data, stack.environ, as_json=as_json)
            announced = True
            threading.Event().wait()
    except KeyboardInterrupt:
        if not announced:
            raise
        print_message("the stack has stopped; its data is kept")


def _print_addresses(data: Path, environ: Mapping[str, str], *, as_json: bool) -> None:
    from sessionary.infra.metrics_targets import TARGETS_FILE

    if wants_json(as_json):
        show_object(client_environment(data), as_json=True)
        return
    servers = environ["SESSIONARY_BOOTSTRAP_SERVERS"]
    print_line(f"Kafka       {servers}")
    if "," in servers:
        print_line("            three brokers: replication factor 3, min.insync.replicas 2")
    print_line(f"ClickHouse  {environ['SESSIONARY_CLICKHOUSE_URL']}")
    print_line(f"Control API {environ['SESSIONARY_CONTROL_URL']}")
    if (limits := environ.get("SESSIONARY_QUOTAS_FILE")) is not None:
        print_line(f"Quotas      {environ['SESSIONARY_QUOTAS_URL']}, limits of {limits}")
    print_line(f"Metrics     {data / TARGETS_FILE}: the targets, for file_sd_configs of Prometheus")
    print_line(f"Logs        {data / 'logs'}")
    option = "" if data == DEFAULT_DATA else f" --data {shlex.quote(str(data))}"
    print_line("\nFor another shell:")
    print_line(f'eval "$({command_name()} env{option})"')
    print_line("\nIt sets:")
    for line in shell_lines(client_environment(data), ShellName.SH):
        print_line(line)
    print_line("\nCtrl-C stops the stack; its data is kept.")
