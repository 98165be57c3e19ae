"""`sessionary doctor`: check every part of a stack, and advise on each fault."""

import http.client
import os
import re
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sessionary.infra.cli.commands.operators.partition import describe_halt
from sessionary.infra.cli.commands.operators.spool import find_spool_faults
from sessionary.infra.cli.errors import CheckFailed
from sessionary.infra.cli.options import DataOption, JsonOption
from sessionary.infra.cli.output import print_line, print_message, wants_json
from sessionary.infra.cli.tables import Json, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.disk_room import ROOM_BYTES_MIN, DiskRoom, measure_room
from sessionary.infra.environment import (
    DEFAULT_DATA,
    control_api_context,
    names_servers,
    read_environment,
    stack_environment,
)
from sessionary.infra.kpi.integrity import LATE_S
from sessionary.infra.lag.lag_tracker import GroupLag, find_fault, sum_groups
from sessionary.infra.local.ports import LOOPBACK
from sessionary.infra.metrics_targets import recorded_ports
from sessionary.infra.settings import OperatorSettings
from sessionary.infra.worker_findings import (
    Document,
    Finding,
    advise_halt,
    describe_rules,
    describe_workers,
    find_clock_faults,
    find_full_state_disks,
    find_key_faults,
    find_name_faults,
    find_quota_faults,
    find_release_faults,
    find_setting_faults,
)
from sessionary.schemas.errors import SessionaryError, Unavailable
from sessionary.schemas.http.control_servers import split_urls
from sessionary.schemas.http.proxies import open_url
from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings, read_variables
from sessionary.schemas.settings.variables import describe_near_misses, find_near_misses
from sessionary.schemas.topics import SINK_TOPICS
from sessionary.sinks.settings import IdleSettings, SinkGroupSettings
from sessionary.stream_processors.core_build import core_build, interpreter_build

if TYPE_CHECKING:
    from sessionary.stream_processors.runtime.transaction import EndWatch

# Reads the pages of a local stack's sinks: whether they are ready, and what blocks them.


_PART: Final = "sink-"  # of a local stack, before the sink's kind
_EXPORTER: Final = "lag-exporter"  # of a local stack
_WELL: Final = "ok"
_TEXT_BYTES_MAX: Final = 4_096
_DRIVER_ADVICE: Final = "install the confluent-kafka that constraints.txt names"
_SAFE_END: Final = 5  # KIP-890: with it each transaction has a new epoch
_REOPENED: Final = "a producer is replaced if the end of its last transaction is in doubt"


def find_sink_faults(environ: Mapping[str, str], timeout_s: float) -> dict[str, str | None]:
    """Return kind of sink → why it is not well, None if it is; empty without a stack's variables.

    `timeout_s` holds for each page; a sink has two of them.
    """
    ports = recorded_ports(environ, [f"{_PART}{kind}" for kind in sorted(SINK_TOPICS)])
    return {
        part.removeprefix(_PART): _find_fault(f"http://{LOOPBACK}:{port}", timeout_s) for part, port in ports.items()
    }


def _find_fault(address: str, timeout_s: float) -> str | None:
    """Return the cause that blocks a sink by its pages, else why the sink does not keep up."""
    try:
        _, health = _read_page(f"{address}/healthz", timeout_s)
        is_ready, readiness = _read_page(f"{address}/readyz", timeout_s)
    except (OSError, ValueError, http.client.HTTPException):
        return f"{address} does not answer"
    if health != _WELL:  # a sink with a blocked partition is alive, and ready for the others
        return health
    return None if is_ready else readiness


def _read_page(page: str, timeout_s: float) -> tuple[bool, str]:
    """Return whether a page's status is 200, and its text. Raises `OSError`, `HTTPException`."""
    try:
        with open_url(page, timeout_s) as answer:
            return True, answer.read(_TEXT_BYTES_MAX).decode(errors="replace").strip()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return False, refusal.read(_TEXT_BYTES_MAX).decode(errors="replace").strip()


_PACKAGES = ("sessionary", "confluent-kafka", "fastavro", "faust-streaming", "aiokafka", "clickhouse-connect", "chdb")
_TIMEOUT_S = 5.0
LAG_S_MAX = 10.0
_READ_S = 1.5
_ENDS_S = 10.0
_REQUESTS_S = 600
_PAGE_S = 1.0
_DAY_S = 86_400
_LAST_S = 4_291_747_200  # a time that no record has
_OBSERVED_S = 5.0  # longer than a large insert of a sink that catches up
_KAFKA_ADVICE = "start a broker (sessionary up), or set SESSIONARY_BOOTSTRAP_SERVERS and its credentials"
_PROCESSOR_ADVICE = "read the log of sessionary serve processor"
_CLICKHOUSE_ADVICE = "start ClickHouse (sessionary up), or set SESSIONARY_CLICKHOUSE_URL and its credentials"


class Check(NamedTuple):
    """The result of one check. One that passed has advice if a person should look at it."""

    check: str
    ok: bool
    found: str
    advice: str = ""


class _CheckError(Exception):
    """A check failed: its finding, and advice."""

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.advice = advice


def _check_versions() -> str:
    found = [f"python {sys.version.split()[0]} (built with {interpreter_build()}; {core_build()} core)"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


class _DriverLog:
    """Passes the driver's lines on, and keeps the versions of its `EndTxn` requests."""

    def __init__(self, ends: "EndWatch") -> None:
        self._ends = ends
        self.versions: list[str] = []

    def log(self, level: int, text: str, *given: object) -> None:
        """Take a line of the driver."""
        self._ends.log(level, text, *given)
        self.versions += re.findall(r"Sent EndTxnRequest \(v(\d+)", str(given[-1]))


def _check_driver() -> str:
    """Let the driver make a transaction with the mock of a broker that it has in it."""
    from confluent_kafka import KafkaException, Producer, libversion

    from sessionary.stream_processors.runtime.transaction import EndWatch

    driver, ends = f"librdkafka {libversion()[0]}", EndWatch()
    driver_log = _DriverLog(ends)
    mock = {"test.mock.num.brokers": 1, "bootstrap.servers": "", "transactional.id": "doctor", "debug": "protocol,eos"}
    try:
        producer = Producer(mock, logger=driver_log)
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
        producer.produce("doctor", b"")
        ends.begin()
        producer.commit_transaction(_TIMEOUT_S)
        producer.poll(0)
    except KafkaException as error:
        raise _CheckError(f"{driver} cannot end a transaction of its own mock: {error}", _DRIVER_ADVICE) from None
    if ends.doubt is not None or not driver_log.versions:
        raise _CheckError(
            f"{driver} does not log a transaction's end as expected: its producer would be replaced after each",
            _DRIVER_ADVICE,
        )
    version = driver_log.versions[-1]
    late = "the broker refuses one that comes late" if int(version) >= _SAFE_END else _REOPENED
    return f"{driver} speaks EndTxn v{version}: {late}"


def _check_broker(settings: KafkaSettings) -> str:
    from sessionary.infra.topics import count_brokers

    try:
        brokers = count_brokers(settings)
    except Unavailable:
        raise _CheckError(f"{settings.bootstrap_servers} does not answer", _KAFKA_ADVICE) from None
    return f"{settings.bootstrap_servers}, {brokers} node(s)"


def _check_topics(settings: KafkaSettings) -> str:
    from sessionary.infra.topics import has_topic_ids, list_topic_changes

    if wrong := list_topic_changes(settings):
        raise _CheckError("; ".join(wrong), "run: sessionary topics apply")
    found = f"all topics of prefix {settings.topic_prefix!r} are correct, {settings.partitions} partitions each"
    if has_topic_ids(settings):
        return found
    return f"{found}; the broker gives topics no ids, so no role notices that one was deleted and made again"


def _check_clickhouse(settings: ClickHouseSettings) -> str:
    return f"{settings.clickhouse_url}, version {ClickHouseClient(settings, _TIMEOUT_S).server_version()}"


def _check_migrations(settings: ClickHouseSettings) -> str:
    from sessionary.sinks.clickhouse.migrate import check_migrations
    from sessionary.sinks.errors import OperatorError

    try:
        check_migrations(settings)
    except OperatorError as error:
        can_migrate = error.reason == "not_migrated"
        advice = "run: sessionary db migrate" if can_migrate else "read the error: db migrate refuses this database"
        raise _CheckError(str(error), advice) from None
    return f"database {settings.clickhouse_database} is up to date"


def _check_processor(environ: Mapping[str, str], control_url: str | None) -> str:
    """Check each of the URLs: clients try the next one, but each should be there."""
    from sessionary.infra.stack import api_ready

    if control_url is None:
        raise _CheckError(
            "SESSIONARY_CONTROL_URL is not set",
            "set it to the processor's address: clients need it to resume a session",
        )
    urls = split_urls(control_url)
    with ThreadPoolExecutor(len(urls)) as threads:
        ready = threads.map(lambda url: api_ready(url, _TIMEOUT_S, control_api_context(environ, url)), urls)
        unready = [url for url, is_ready in zip(urls, ready, strict=True) if not is_ready]
    if unready:
        others = [url for url in urls if url not in unready]
        raise _CheckError(
            "; ".join(f"{url} is not ready" for url in unready) + (f"; {', '.join(others)}: ready" if others else ""),
            "start a processor (sessionary serve processor), or wait: it may still be reading its changelog",
        )
    return f"{', '.join(urls)}: ready" if len(urls) > 1 else f"{urls[0]} is ready"


def _check_partitions(partitions: Sequence[Document], worker: str = "a processor") -> str:
    wrong = [partition for partition in partitions if partition["state"] not in ("open", "opening")]
    if wrong:
        advice = [advise_halt(partition) for partition in wrong if partition["state"] == "halted"]
        absent = f"start {worker}, or read the log of the one that does not answer"
        raise _CheckError("; ".join(map(describe_halt, wrong)), "; ".join(advice) or absent)
    return f"{len(partitions)} partitions have an owner, none is halted"


def _check_quota_partitions(settings: OperatorSettings, url: str) -> str:
    try:
        partitions = ControlApiClient(settings.model_copy(update={"control_url": url})).list_partitions()
        return _check_partitions(partitions, "sessionary serve quotas")
    except Unavailable:
        raise _CheckError(f"{url} does not answer", "start it: sessionary serve quotas, or read its log") from None
    except _CheckError as wrong:  # the role's own workers decide about its partitions
        own = wrong.advice.replace("sessionary partition ", f"SESSIONARY_CONTROL_URL={url} sessionary partition ")
        raise _CheckError(str(wrong), own) from None


def _check_quota_workers(settings: OperatorSettings, url: str) -> str:
    workers = ControlApiClient(settings.model_copy(update={"control_url": url})).list_rules()["workers"]
    processors: Json = []
    if settings.control_url is not None:
        with suppress(SessionaryError, OSError):  # the check of the processors reports it
            processors = ControlApiClient(settings).list_rules()["workers"]
    faults = [*find_release_faults(workers), *find_setting_faults(workers), *find_key_faults(processors, workers)]
    return _raise_findings(faults, describe_workers(workers))


def _check_integrity(settings: ClickHouseSettings) -> str:
    # A day of a million rows takes a second. The command compares all of them, and with Kafka.
    since_s = int(time.time()) - _DAY_S
    rows = ClickHouseClient(settings).fetch_rows(
        f"SELECT fault, sum(rows) AS rows FROM {settings.between_database}.v_integrity_between("
        f"from=toDateTime({since_s}, 'UTC'), to=toDateTime({_LAST_S}, 'UTC'), late_s={LATE_S}) "
        "GROUP BY fault ORDER BY fault"
    )
    if rows:
        found = ", ".join(f"{row['fault']}: {row['rows']}" for row in rows)
        raise _CheckError(found, "run: sessionary integrity check; rows that arrive late leave it by themselves")
    return "of the last day, no row is missing or doubled"


def _check_landed_ends(groups: SinkGroupSettings, clickhouse: ClickHouseSettings) -> str:
    from sessionary.sinks.integrity.landed_ends import find_end_faults
    from sessionary.sinks.integrity.topic_counts import REQUEST_TOPICS, compare_topics

    fetch_rows = ClickHouseClient(clickhouse).fetch_rows
    faults = find_end_faults(groups, fetch_rows, _ENDS_S)
    # A busy pipeline writes too many requests to read a day of them here: the command does.
    compared = compare_topics(groups, fetch_rows, int(time.time()) - _REQUESTS_S, LATE_S, _ENDS_S, REQUEST_TOPICS)
    if faults := faults + compared.faults:
        found = ", ".join(f"{fault.fault}: partition {fault.partition}" for fault in faults)
        raise _CheckError(
            found, "run: sessionary integrity check, and sessionary integrity repair while Kafka has the records"
        )
    well = f"the last record of each sink is in its table, no request of the last {_REQUESTS_S // 60} min is missing"
    return "; ".join([well, *compared.notes])


def _check_sinks(faults: Mapping[str, str | None]) -> str:
    if wrong := {kind: fault for kind, fault in faults.items() if fault is not None}:
        raise _CheckError(
            "; ".join(f"sink {kind}: {fault}" for kind, fault in wrong.items()),
            "; ".join(f"read the log of sessionary serve sink {kind}" for kind in wrong),
        )
    return f"{', '.join(faults)} keep up, none is blocked"


def _check_disks(folders: Sequence[Path]) -> str:
    rooms = [measure_room(folder) for folder in folders]
    if full := [room for room in rooms if not room.is_enough]:
        raise _CheckError("; ".join(map(str, full)), "; ".join(f"make room: {_list_largest(r.folder)}" for r in full))
    return "; ".join(map(str, rooms))


def _list_largest(folder: Path | str) -> str:
    return f"du -xh {folder} | sort -h | tail"


def _check_clickhouse_disks(settings: ClickHouseSettings) -> str:
    disks = ClickHouseClient(settings, _TIMEOUT_S).fetch_rows(
        "SELECT name, path, toUInt64(free_space) AS free, toUInt64(total_space) AS total FROM system.disks "
        "ORDER BY name"
    )
    rooms = {disk["name"]: DiskRoom(Path(disk["path"]), int(disk["free"]), int(disk["total"])) for disk in disks}
    if full := {name: room for name, room in rooms.items() if not room.is_enough}:
        found = "; ".join(f"ClickHouse's disk {name}: {room}" for name, room in full.items())
        raise _CheckError(
            found, "; ".join(f"make room on its server: {_list_largest(r.folder)}" for r in full.values())
        )
    return "; ".join(f"{name}: {room}" for name, room in rooms.items())


def _raise_findings(findings: Sequence[Finding], well: str) -> str:
    """Return `well` if nothing was found."""
    if findings:
        raise _CheckError("; ".join(one.found for one in findings), "; ".join(one.advice for one in findings))
    return well


def _run_worker_checks(settings: OperatorSettings) -> Iterator[Check]:
    """Check the answers of all workers of the group; any worker answers for the others."""
    client = ControlApiClient(settings)
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(client.list_rules)
        try:
            partitions = client.list_partitions()
        except (SessionaryError, OSError) as error:
            yield Check("partitions", ok=False, found=str(error), advice=_PROCESSOR_ADVICE)
            return
    yield _run_check("partitions", lambda: _check_partitions(partitions), _PROCESSOR_ADVICE)
    try:
        listing = asked.result()
    except (SessionaryError, OSError) as error:
        yield Check("workers", ok=False, found=str(error), advice=_PROCESSOR_ADVICE)
        return
    workers, now_ms = listing["workers"], int(time.time() * 1_000)
    faults = [*find_release_faults(workers), *find_setting_faults(workers)]
    yield _run_check("workers", lambda: _raise_findings(faults, describe_workers(workers)), _PROCESSOR_ADVICE)
    in_force, unfinished, advice = describe_rules(listing["partitions"], workers)
    rules = _run_check("rules", lambda: _raise_findings(unfinished, in_force), "")
    yield rules._replace(advice=rules.advice or advice)
    clocks = find_clock_faults(partitions, workers, now_ms)
    yield _run_check("clocks", lambda: _raise_findings(clocks, "workers, log and this machine agree"), "")
    names = {"runs": "quotas", "sessions": "session_quotas"}
    if asking := [who for who, name in names.items() if any(found.get(name) for found in listing["partitions"])]:
        who, count = " and ".join(asking), listing.get("quota_workers")
        unserved = find_quota_faults(count, who)
        yield _run_check("quotas", lambda: _raise_findings(unserved, f"{who} ask for them; workers: {count}"), "")
    if any(worker.get("state_dir") for worker in workers):
        full = find_full_state_disks(workers, ROOM_BYTES_MIN)
        yield _run_check("state disks", lambda: _raise_findings(full, "each worker has room for its rows"), "")


def _run_check(name: str, check: Callable[[], str], advice: str) -> Check:
    """Run one check. `advice` is given for errors for which the check itself has none."""
    try:
        return Check(name, ok=True, found=check())
    except _CheckError as wrong:
        return Check(name, ok=False, found=str(wrong), advice=wrong.advice)
    except (SessionaryError, OSError) as error:
        return Check(name, ok=False, found=str(error), advice=advice)


def run_checks(environ: Mapping[str, str], folders: Sequence[Path] = ()) -> Iterator[Check]:
    """Run every check, and yield its result, always in the same order.

    `folders`: folders of this machine whose disks need room. A failed check does not stop the
    others, but checks that need an unreachable server are skipped. Raises `SettingsError`.
    """
    kafka, clickhouse = SinkGroupSettings.from_env(environ), ClickHouseSettings.from_env(environ)
    operator, idle_s = OperatorSettings.from_env(environ), IdleSettings.from_env(environ).sink_idle_seconds
    yield _run_check("versions", _check_versions, "reinstall sessionary")
    yield _run_check("driver", _check_driver, "reinstall sessionary")
    yield _check_variables(environ)
    if folders:
        yield _run_check("disks", lambda: _check_disks(folders), "name a folder that exists by --data")
    yield from _run_spool_check(environ)
    # Servers are asked at the same time: most of what doctor takes is waiting.
    asked = (
        _run_kafka_checks(kafka, idle_s),
        _run_clickhouse_checks(clickhouse),
        _run_processor_checks(environ, operator),
        _run_sink_checks(environ),
        _run_end_checks(kafka, clickhouse),
    )
    with ThreadPoolExecutor() as threads:
        for answers in threads.map(list[Check], asked):
            yield from answers


def _check_variables(environ: Mapping[str, str]) -> Check:
    """Warn of variables that are nearly settings."""
    if found := find_near_misses(environ):
        return Check("variables", ok=True, found="; ".join(describe_near_misses(found)), advice="rename or unset it")
    return Check("variables", ok=True, found="none is nearly a setting")


def _run_spool_check(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the spools of this machine's clients, if any has run here."""
    try:
        found = find_spool_faults(environ)
    except (SessionaryError, OSError) as error:
        yield Check("spools", ok=False, found=str(error), advice="read the error: the folder is for clients")
        return
    if found is not None:
        described, faults, advice = found
        yield Check("spools", not faults, "; ".join([*faults, described]), "; ".join(advice))


def _run_kafka_checks(kafka: SinkGroupSettings, idle_s: float) -> Iterator[Check]:
    yield (broker := _run_check("broker", lambda: _check_broker(kafka), _KAFKA_ADVICE))
    if broker.ok:
        yield _run_check("topics", lambda: _check_topics(kafka), _KAFKA_ADVICE)
        yield from _run_lag_checks(kafka, idle_s)
        yield _run_check("names", lambda: _check_names(kafka), _KAFKA_ADVICE)


def _run_clickhouse_checks(clickhouse: ClickHouseSettings) -> Iterator[Check]:
    yield (server := _run_check("clickhouse", lambda: _check_clickhouse(clickhouse), _CLICKHOUSE_ADVICE))
    if server.ok:
        yield _run_check("migrations", lambda: _check_migrations(clickhouse), _CLICKHOUSE_ADVICE)
        yield _run_check("clickhouse disks", lambda: _check_clickhouse_disks(clickhouse), _CLICKHOUSE_ADVICE)
        yield _run_check("integrity", lambda: _check_integrity(clickhouse), "run: sessionary db migrate")


def _run_end_checks(groups: SinkGroupSettings, clickhouse: ClickHouseSettings) -> Iterator[Check]:
    """Compare both servers if both answer; otherwise their own checks report the fault."""
    with suppress(_CheckError, SessionaryError, OSError):
        _check_broker(groups)
        _check_migrations(clickhouse)
        advice = "read the error: Kafka or ClickHouse did not answer this question"
        yield _run_check("landed ends", lambda: _check_landed_ends(groups, clickhouse), advice)


def _run_processor_checks(environ: Mapping[str, str], operator: OperatorSettings) -> Iterator[Check]:
    yield _run_check("processor", lambda: _check_processor(environ, operator.control_url), _PROCESSOR_ADVICE)
    if operator.control_url is not None and operator.operator_token is not None:
        yield from _run_worker_checks(operator)
    if (url := operator.quotas_url) is not None and operator.operator_token is not None:
        yield _run_check("quotas partitions", lambda: _check_quota_partitions(operator, url), "read the role's log")
        yield _run_check("quotas workers", lambda: _check_quota_workers(operator, url), "read the role's log")


def _run_sink_checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the pages of a local stack's sinks and exporter; other addresses are unknown."""
    if faults := find_sink_faults(environ, _PAGE_S):
        yield _run_check("sinks", lambda: _check_sinks(faults), "")
    for port in recorded_ports(environ, [_EXPORTER]).values():
        fault = _find_fault(f"http://{LOOPBACK}:{port}", _PAGE_S)
        advice = "" if fault is None else "start it: sessionary serve lag-exporter, or read its log"
        yield Check("lag exporter", fault is None, fault or "it answers, and its samples are new", advice)


def _check_names(kafka: KafkaSettings) -> str:
    from sessionary.stream_processors.group_members import group_by_name, list_members
    from sessionary.stream_processors.settings import processor_group, quotas_group

    connection = AdminConnection(kafka)
    try:
        groups = (processor_group(kafka.topic_prefix), quotas_group(kafka.topic_prefix))
        shared = {group: group_by_name(list_members(connection, group)) for group in groups}
    finally:
        connection.end_client()
    return _raise_findings(find_name_faults(shared), "each worker of a group has its own name")


def _run_lag_checks(kafka: SinkGroupSettings, idle_s: float) -> Iterator[Check]:
    """Check the groups of the roles: by their members, and by their movement if they are behind."""
    from sessionary.stream_processors.settings import processor_group

    try:
        lags = _measure_lags(kafka, idle_s)
    except SessionaryError as error:
        yield Check("lag", ok=False, found=f"the lag is unknown: {error}", advice=_KAFKA_ADVICE)
        return
    needed = {processor_group(kafka.topic_prefix), *(kafka.group_id(kind) for kind in SINK_TOPICS)}
    for lag in lags:
        name = lag.group.removeprefix(f"{kafka.topic_prefix}.")
        fault = find_fault(lag, LAG_S_MAX)
        if fault is None and lag.group in needed and lag.group_state.is_memberless:
            fault = f"{lag.lag} records behind, and it has no member: the role does not run"
        advice = f"start it: {_start_command(name)}, or read its log; then see: sessionary lag --watch"
        yield Check(f"lag {name}", fault is None, fault or f"{lag.lag} records behind", advice if fault else "")


def _start_command(name: str) -> str:
    """Return the command that starts a member of a role's group, by its name without the prefix."""
    role, _, rest = name.partition(".")
    kind, _, pipeline = rest.partition(".")  # of a sink
    variable = f"SESSIONARY_PIPELINE={pipeline} " if pipeline else ""
    return f"{variable}sessionary serve {role} {kind}".rstrip()


def _measure_lags(kafka: KafkaSettings, idle_s: float) -> list[GroupLag]:
    """Return the lags of processor and sinks; a group that is behind is observed for a while."""
    from sessionary.infra.lag.lag_monitor import LagMonitor
    from sessionary.infra.lag.lag_tracker import is_service_group

    def is_role(lag: GroupLag) -> bool:
        # A service may be off; then its requests wait for its next process.
        return not is_service_group(kafka.topic_prefix, lag.group)

    with closing(LagMonitor(kafka, _OBSERVED_S, idle_s)) as monitor:
        lags = list(filter(is_role, sum_groups(monitor.take_report(_READ_S).partitions)))
        if any((lag.lag_s or 0) > LAG_S_MAX for lag in lags):
            time.sleep(_OBSERVED_S)
            lags = list(filter(is_role, sum_groups(monitor.take_report().partitions)))
    return lags


def doctor_command(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Check every part of a stack: reachability, faults, and remedies.

    The exit code is 1 if a check fails.
    """
    found: list[dict[str, Json]] = []
    environ = _find_environment(data)
    for check in run_checks(environ, _list_folders(data, environ)):
        found.append(check._asdict())
        if not wants_json(as_json):
            mark = "FAIL" if not check.ok else "warn" if check.advice else "ok"
            print_line(f"{mark:5} {check.check}: {check.found}")
            if check.advice:
                print_line(f"        → {check.advice}")
    if wants_json(as_json):
        show_rows(found, as_json=True)
    wrong = [check["check"] for check in found if not check["ok"]]
    if wrong:
        raise CheckFailed(f"failed checks: {', '.join(wrong)}")
    print_message("all checks passed")


def _find_environment(data: Path | None) -> dict[str, str]:
    """Return the variables of the stack, or of this process if no stack has served the folder."""
    return stack_environment(data if data is None or read_environment(data) else None)


def _list_folders(data: Path | None, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders of this machine that a stack, or a worker with these variables, fills."""
    state_dir = environ.get("SESSIONARY_STATE_DIR")
    ours = [] if data is None and names_servers(read_variables(os.environ)) else [data or DEFAULT_DATA]
    return ours + ([Path(state_dir)] if state_dir else [])
