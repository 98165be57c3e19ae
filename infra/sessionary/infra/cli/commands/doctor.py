"""`sessionary doctor`: check every part of a stack, and say what to do about each fault."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from sessionary.infra.cli.commands.operators.partition import describe_halt
from sessionary.infra.cli.errors import CheckFailed
from sessionary.infra.cli.options import DataOption, JsonOption
from sessionary.infra.cli.output import print_line, print_message, wants_json
from sessionary.infra.cli.tables import Json, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.environment import stack_environment
from sessionary.infra.lag.group_lag import GroupLag, find_fault, sum_groups
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import SessionaryError, Unavailable
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings

_PACKAGES = ("sessionary", "confluent-kafka", "fastavro", "faust-streaming", "aiokafka", "clickhouse-connect", "chdb")
_TIMEOUT_S = 5.0
LAG_S_MAX = 10.0
_READ_S = 1.5
_OBSERVED_S = 5.0  # longer than a large insert of a sink that catches up
_KAFKA_ADVICE = "start a broker (sessionary up), or set SESSIONARY_BOOTSTRAP_SERVERS and its credentials"
_CLICKHOUSE_ADVICE = "start ClickHouse (sessionary up), or set SESSIONARY_CLICKHOUSE_URL and its credentials"


class Check(NamedTuple):
    """The result of one check. `advice` is empty if the check passed."""

    check: str
    ok: bool
    found: str
    advice: str = ""


class _CheckError(Exception):
    """A check failed: what it found, and what to do."""

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.advice = advice


def _check_versions() -> str:
    found = [f"python {sys.version.split()[0]}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _check_broker(settings: KafkaSettings) -> str:
    from sessionary.infra.topics import count_brokers

    try:
        brokers = count_brokers(settings)
    except Unavailable:
        raise _CheckError(
            f"{settings.bootstrap_servers} does not answer",
            _KAFKA_ADVICE,
        ) from None
    return f"{settings.bootstrap_servers}, {brokers} node(s)"


def _check_topics(settings: KafkaSettings) -> str:
    from sessionary.infra.topics import list_topic_changes

    if wrong := list_topic_changes(settings):
        raise _CheckError("; ".join(wrong), "run: sessionary topics apply")
    return f"all topics of prefix {settings.topic_prefix!r} are correct, {settings.partitions} partitions each"


def _check_clickhouse(settings: ClickHouseSettings) -> str:
    return f"{settings.clickhouse_url}, version {ClickHouseClient(settings, _TIMEOUT_S).server_version()}"


def _check_migrations(settings: ClickHouseSettings) -> str:
    from sessionary.sinks.clickhouse.migrate import check_migrations
    from sessionary.sinks.errors import OperatorError

    try:
        check_migrations(settings)
    except OperatorError as error:
        raise _CheckError(str(error), "run: sessionary db migrate") from None
    return f"database {settings.clickhouse_database} is up to date"


def _check_processor(environ: Mapping[str, str]) -> str:
    from sessionary.infra.stack import api_ready

    url = environ.get("SESSIONARY_CONTROL_URL")
    if url is None:
        raise _CheckError(
            "SESSIONARY_CONTROL_URL is not set",
            "set it to the processor's address: clients need it to resume a session",
        )
    if not api_ready(url, _TIMEOUT_S):
        raise _CheckError(
            f"{url} is not ready",
            "start a processor (sessionary processor), or wait: it may still be reading its changelog",
        )
    return f"{url} is ready"


def _check_partitions(settings: OperatorSettings) -> str:
    partitions = ControlApiClient(settings).list_partitions()
    wrong = [partition for partition in partitions if partition["state"] not in ("open", "opening")]
    if wrong:
        halted = [str(partition["partition"]) for partition in wrong if partition["state"] == "halted"]
        advice = [f"remove the cause, then run: sessionary partition retry {number}" for number in halted]
        absent = "start a processor, or read the log of the one that does not answer"
        raise _CheckError("; ".join(map(describe_halt, wrong)), "; ".join(advice) or absent)
    return f"{len(partitions)} partitions have an owner, none is halted"


def _check_integrity(settings: ClickHouseSettings) -> str:
    rows = ClickHouseClient(settings).fetch_rows(
        "SELECT fault, sum(rows) AS rows FROM v_integrity GROUP BY fault ORDER BY fault"
    )
    if rows:
        found = ", ".join(f"{row['fault']}: {row['rows']}" for row in rows)
        raise _CheckError(found, "run: sessionary integrity; rows that arrive late leave it by themselves")
    return "no row is missing or doubled"


def _run_check(name: str, check: Callable[[], str], advice: str) -> Check:
    """Run one check. `advice` is given for errors for which the check itself has none."""
    try:
        return Check(name, ok=True, found=check())
    except _CheckError as wrong:
        return Check(name, ok=False, found=str(wrong), advice=wrong.advice)
    except (SessionaryError, OSError) as error:
        return Check(name, ok=False, found=str(error), advice=advice)


def run_checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Run every check in order, and yield its result.

    A failed check does not stop the others, but checks that need an unreachable server are skipped.
    Raises `SettingsError`.
    """
    kafka, clickhouse = KafkaSettings.from_env(environ), ClickHouseSettings.from_env(environ)
    operator = OperatorSettings.from_env(environ)
    yield _run_check("versions", _check_versions, "reinstall sessionary")
    yield (broker := _run_check("broker", lambda: _check_broker(kafka), _KAFKA_ADVICE))
    if broker.ok:
        yield _run_check("topics", lambda: _check_topics(kafka), _KAFKA_ADVICE)
    yield (store := _run_check("clickhouse", lambda: _check_clickhouse(clickhouse), _CLICKHOUSE_ADVICE))
    if store.ok:
        yield _run_check("migrations", lambda: _check_migrations(clickhouse), _CLICKHOUSE_ADVICE)
    yield _run_check("processor", lambda: _check_processor(environ), "read the log of sessionary processor")
    if operator.control_url is not None and operator.operator_token is not None:
        yield _run_check("partitions", lambda: _check_partitions(operator), "read the log of sessionary processor")
    if broker.ok:
        yield from _run_lag_checks(kafka)
    if store.ok:
        yield _run_check("integrity", lambda: _check_integrity(clickhouse), "run: sessionary db migrate")


def _run_lag_checks(kafka: KafkaSettings) -> Iterator[Check]:
    """Check the groups of the roles: by their movement, if they are behind."""
    try:
        lags = _measure_lags(kafka)
    except SessionaryError as error:
        yield Check("lag", ok=False, found=f"the lag is unknown: {error}", advice=_KAFKA_ADVICE)
        return
    for lag in lags:
        name = lag.group.removeprefix(f"{kafka.topic_prefix}.")
        role = name.replace(".", " ")
        fault = find_fault(lag, LAG_S_MAX)
        advice = f"start it: sessionary {role}, or read its log; then see: sessionary lag --watch"
        yield Check(f"lag {name}", fault is None, fault or f"{lag.lag} records behind", advice if fault else "")


def _measure_lags(kafka: KafkaSettings) -> list[GroupLag]:
    """Return the lags of processor and sinks; a group that is behind is observed for a while."""
    from sessionary.infra.lag.lag_monitor import LagMonitor

    with closing(LagMonitor(kafka, _OBSERVED_S)) as monitor:
        lags = list(sum_groups(monitor.take_report(_READ_S).partitions))
        if any((lag.lag_s or 0) > LAG_S_MAX for lag in lags):
            time.sleep(_OBSERVED_S)
            lags = list(sum_groups(monitor.take_report().partitions))
    # A service may have no clean-up handler; then its requests wait for the next one.
    return [lag for lag in lags if not lag.group.startswith(f"{kafka.topic_prefix}.cleanup.")]


def doctor_command(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Check every part of a stack: what is reachable, what is wrong, what to do.

    The exit code is 1 if a check fails.
    """
    found: list[dict[str, Json]] = []
    for check in run_checks(stack_environment(data)):
        found.append(check._asdict())
        if not wants_json(as_json):
            print_line(f"{'ok   ' if check.ok else 'FAIL '} {check.check}: {check.found}")
            if check.advice:
                print_line(f"        → {check.advice}")
    if wants_json(as_json):
        show_rows(found, as_json=True)
    wrong = [check["check"] for check in found if not check["ok"]]
    if wrong:
        raise CheckFailed(f"failed checks: {', '.join(wrong)}")
    print_message("all checks passed")


__all__ = ["Check", "doctor_command", "run_checks"]
