"""The roles, one process each. `up` runs them all; production runs processor and sinks.

`SESSIONARY_*` variables configure each role. SIGTERM and Ctrl-C stop it cleanly.
"""

import os
import signal
import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.options import DataOption
from sessionary.infra.environment import stack_environment
from sessionary.infra.settings import LagSettings, TaskPagesSettings
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.settings import KafkaSettings


class SinkName(StrEnum):
    """The sinks."""

    AUDIT = "audit"
    HISTORY = "history"
    REJECTED = "rejected"
    BATCHES = "batches"


def broker_command(
    data: Annotated[Path, typer.Option("--data", help="Folder of the broker's data.", file_okay=False)] = Path(
        ".sessionary/broker"
    ),
    port: Annotated[
        int | None, typer.Option("--port", help="Default: the folder's last port, else a free one.")
    ] = None,
    node: Annotated[
        int | None, typer.Option("--node", min=1, help="Run this node of the folder's three brokers.")
    ] = None,
) -> None:
    """Run one Kafka broker on loopback, for development."""
    from sessionary.infra.local.kafka.cluster import run_broker, run_node
    from sessionary.schemas.telemetry.role_logs import configure_role_logs, role_logger

    configure_role_logs("broker")
    log = role_logger(__name__)
    if node is None:
        run_broker(data, port, log.info)
    else:
        run_node(data, node, log.info)


def clickhouse_command(
    data: Annotated[Path, typer.Option("--data", help="Folder of the engine's data.", file_okay=False)] = Path(
        ".sessionary/clickhouse"
    ),
    port: Annotated[int, typer.Option("--port", min=1, max=65_535)] = 8123,
) -> None:
    """Serve a ClickHouse engine over HTTP on loopback, for development.

    The password is SESSIONARY_CLICKHOUSE_PASSWORD, else a random one, which DATA/env.json keeps.
    """
    from sessionary.infra.environment import keep_secret
    from sessionary.infra.local.clickhouse.endpoint import PASSWORD_VARIABLE, run_clickhouse
    from sessionary.schemas.settings import read_variables
    from sessionary.schemas.telemetry.role_logs import configure_role_logs

    configure_role_logs("clickhouse")
    password = read_variables(os.environ).get(PASSWORD_VARIABLE)
    run_clickhouse(data, port, password or keep_secret(data, PASSWORD_VARIABLE))


def processor_command(
    faust_agents: Annotated[
        str | None,
        typer.Option(
            "--faust-agents",
            metavar="MODULE:FUNCTION",
            help="Run the Faust agents that this function registers. Default: SESSIONARY_FAUST_AGENTS.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a processor: session state, audit trail, timeouts, control API."""
    from sessionary.schemas.telemetry.role_logs import configure_role_logs
    from sessionary.stream_processors.process import run_processor
    from sessionary.stream_processors.settings import ProcessorSettings

    settings = ProcessorSettings.from_env(faust_agents=faust_agents)
    configure_role_logs("processor", settings.instance)
    run_processor(settings)


def quotas_command() -> None:
    """Run a worker of quotas, which admits, queues or rejects runs and sessions by tenants' limits.

    SESSIONARY_QUOTAS_FILE names the limits. `sessionary rules activate --quotas` makes runs request
    slots, `--session-quotas` sessions.
    """
    from sessionary.schemas.telemetry.role_logs import configure_role_logs
    from sessionary.stream_processors.quotas.settings import QuotaSettings
    from sessionary.stream_processors.quotas.verdict_sender import run_quotas

    settings = QuotaSettings.from_env()
    configure_role_logs("quotas", settings.instance)
    run_quotas(settings)


def sink_command(kind: Annotated[SinkName, typer.Argument(help="The topic to write to ClickHouse.")]) -> None:
    """Run a sink: write one topic to ClickHouse, each row exactly once."""
    from sessionary.schemas.telemetry.role_logs import configure_role_logs
    from sessionary.sinks.app import run_sink
    from sessionary.sinks.settings import SinkSettings

    settings = SinkSettings.from_env()
    configure_role_logs(f"sink {kind.value}", settings.instance)
    _begin_reach_check(settings)
    run_sink(kind.value, settings, _stop_event(), may_exit=True)


def task_worker_command(
    module: Annotated[str, typer.Option("--module", help="Module that has functions marked with @task.")],
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant of the tasks.")],
    service: Annotated[str, typer.Option("--service", help="The service that owns the tasks' sessions.")],
    agent: Annotated[str, typer.Option("--agent", help="The worker's name in its events.")] = "task-worker",
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Tasks at once.")] = 4,
    beat_s: Annotated[
        float, typer.Option("--beat-s", min=0.1, help="Seconds between a silent task's heartbeats.")
    ] = 5.0,
    lease_s: Annotated[
        float, typer.Option("--lease-s", min=0.5, help="Seconds of silence after which a task's worker counts as lost.")
    ] = 30.0,
) -> None:
    """Carry out the long tasks of a tenant's service until SIGTERM or Ctrl-C."""
    from sessionary.infra.cli.task_pages import serve_task_pages
    from sessionary.producers.client import SessionClient
    from sessionary.producers.tasks.worker import TaskTimes, TaskWorker, functions_of
    from sessionary.schemas.telemetry.role_logs import configure_role_logs, role_logger

    pages = TaskPagesSettings.from_env()
    configure_role_logs("task worker", agent)
    stop = _stop_event()
    sys.path.insert(0, str(Path.cwd()))
    functions = functions_of(module)
    _begin_reach_check(KafkaSettings.from_env())
    with SessionClient(tenant_id=tenant, service_id=service, agent_id=agent) as client:
        worker = TaskWorker(client, functions, concurrency=concurrency, times=TaskTimes(beat_s, lease_s))
        with serve_task_pages(worker, client, pages):
            worker.start()
            role_logger(__name__).info("tasks that are carried out: %(types)s", types=", ".join(sorted(functions)))
            stop.wait()
            worker.close()


def lag_exporter_command(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Port of /metrics. Default: SESSIONARY_METRICS_PORT, else 9308."),
    ] = None,
    data: DataOption = None,
) -> None:
    """Serve the lag of each consumer group to Prometheus."""
    from sessionary.infra.lag.exporter import run_exporter
    from sessionary.schemas.telemetry.role_logs import configure_role_logs

    configure_role_logs("lag exporter")
    run_exporter(LagSettings.from_env(stack_environment(data), metrics_port=port), _stop_event())


def _begin_reach_check(settings: KafkaSettings) -> None:
    """Log within 5 s that no broker answers. Never blocks; the role itself keeps trying.

    Its clients notice only later: a connection that is open may be silent for long.
    """

    def check_reach() -> None:
        from sessionary.infra.topics import count_brokers
        from sessionary.schemas.telemetry.role_logs import error_fields, role_logger

        try:
            count_brokers(settings)
        except SessionaryError as error:
            role_logger(__name__).warning("no broker answers yet: %(error)s", **error_fields(error))

    threading.Thread(target=check_reach, name="reach-check", daemon=True).start()


def _stop_event() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop
