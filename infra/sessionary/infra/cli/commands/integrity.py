"""`sessionary integrity check`, `repair` and `dismiss`: whether ClickHouse has every row, once."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from sessionary.infra.cli.errors import CheckFailed, NotFound
from sessionary.infra.cli.options import DataOption, JsonOption, clickhouse_client, kafka_settings
from sessionary.infra.cli.output import print_message
from sessionary.infra.cli.tables import Json, show_rows
from sessionary.infra.cli.times import FIRST, LAST, TIMES, parse_time
from sessionary.infra.environment import stack_environment
from sessionary.infra.kpi.integrity import KNOWN_FAULTS, LATE_S, table_of_fault
from sessionary.schemas.errors import Invalid, Unavailable

_COLUMNS: Final = ("fault", "rows", "partition", "first_offset", "last_offset", "session_id", "tenant_id")
FromOption = Annotated[
    str | None, typer.Option("--from", help=f"Beginning of the time: {TIMES}. Default: all.", show_default=False)
]
ToOption = Annotated[
    str | None, typer.Option("--to", help="End of the time, as --from. Default: now.", show_default=False)
]
LateOption = Annotated[
    int, typer.Option("--late", min=0, help="Seconds after which the last rows of a table count as missing.")
]


def check_command(
    from_: FromOption = None,
    to: ToOption = None,
    late_s: LateOption = LATE_S,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that ClickHouse has every row once: of history, audit trail, rejections and
    transactions; and that Kafka has every request.

    Compares the counts of each transaction with the rows, and, unless --to is given, the end of
    each table with Kafka, and the counts with the topics audit, rejected, cleanup, tasks,
    migrations and quotas.
    With --from and --to only transactions that began in that time are compared. Says which records
    were not compared, because a topic has deleted them or a transaction has no counts. The exit
    code is 1 if a row or request is missing or duplicated. If Kafka is away, the counts are still
    compared with the rows, and the exit code is 3.
    """
    since, until = _parse_period(from_, to)
    away = _find_kafka_away(data) if until is None else None
    if away is not None:
        print_message(f"neither the ends of the tables nor the requests are compared: {away}")
    found = find_faults(data, since, until, late_s, with_kafka=until is None and away is None)
    if found.faults:
        show_rows(found.faults, as_json=as_json, columns=_COLUMNS)
        raise CheckFailed(
            f"{len(found.faults)} faults: missing rows come back with sessionary integrity repair, if Kafka still has "
            "them; ClickHouse merges doubled rows by itself; requests that Kafka has lost are sent again by sessionary "
            "session ask-again --all; what it has doubled stays so"
        )
    if away := away or found.away:
        raise away
    if until is not None:
        requests = "no request is compared, because --to was given"
    elif found.notes:
        requests = "nor is a request, of those that are compared: see the lines above"
    else:
        requests = "nor is a request"
    print_message(f"no row is missing or doubled, {requests}")


def _find_kafka_away(data: Path | None) -> Unavailable | None:
    """Return the error of a Kafka that does not answer. Blocks for 3 s at most."""
    from sessionary.infra.topics import count_brokers

    try:
        count_brokers(kafka_settings(data))
    except Unavailable as error:
        return error
    return None


def repair_command(
    from_: Annotated[str, typer.Option("--from", help=f"Beginning of the time: {TIMES}.")],
    to: ToOption = None,
    late_s: LateOption = LATE_S,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read the records of a period from Kafka again, and insert those without a row in ClickHouse.

    Repairs the tables of every sink, and run_events from history. The period refers to the times at
    which Kafka appended the records; what the faults of transactions of the period name is read
    too. A record that Kafka has twice gets one row. Records that Kafka has lost or deleted stay
    missing. Records that a sink has not written yet are left to it. Sinks and other repairs may run
    meanwhile, and the command may be repeated. Prints one row per table and partition with records
    of the period. Then checks the period, as integrity check does: the exit code is 1 if a fault is
    left, and stderr names each with its cause.
    """
    from sessionary.infra.topics import count_brokers
    from sessionary.sinks.core.sink_kinds import SINKS
    from sessionary.sinks.integrity.repair import repair_rows, repair_run_events
    from sessionary.sinks.settings import SinkSettings

    since, until = _parse_period(from_, to)
    client, settings = clickhouse_client(data), SinkSettings.from_env(stack_environment(data))
    count_brokers(settings)  # its other questions to Kafka wait for longer
    since_ms, until_ms = (None if time is None else int(time.timestamp() * 1_000) for time in (since, until))
    faults = find_faults(data, since, until, late_s, with_kafka=False).faults
    results = [
        result
        for kind in SINKS
        for result in repair_rows(settings, kind, since_ms or 0, until_ms, client.fetch_rows, faults)
    ]
    results += repair_run_events(settings, since_ms or 0, until_ms, late_s, client.fetch_rows)
    show_rows([result._asdict() for result in results], as_json=as_json)
    print_message(f"{sum(result.repaired for result in results)} rows were missing and are back")
    if copies := sum(result.copies for result in results):
        print_message(f"{copies} records that Kafka has twice have one row each, as they should")
    if lost := sum(result.lost for result in results):
        print_message(f"{lost} rows of run_events cannot be made: history's contents of their events have expired")
    found = find_faults(data, since, until, late_s, with_kafka=until is None)
    if found.faults:
        behind = {(result.sink, result.partition) for result in results if result.behind_s > late_s}
        for fault in found.faults:
            print_message(f"{_describe_fault(fault)}: {_explain_fault(fault, behind)}")
        raise CheckFailed(
            f"{len(found.faults)} faults are left, for the causes above. Repair again once no sink is behind; what is "
            "left then stays: keep rows and topics as they are, and see sessionary integrity check"
        )
    if found.away is not None:
        raise found.away


def _parse_period(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """Return the times of --from and --to.

    Raises `Invalid`, also for a period that ends before it begins.
    """
    now = datetime.now(UTC)
    first = None if since is None else parse_time("--from", since, now)
    last = None if until is None else parse_time("--to", until, now)
    if last is not None and last <= (first or FIRST):
        raise Invalid("invalid_value", f"--to {until} is not after --from {since}: nothing would be compared")
    return first, last


def _describe_fault(fault: Mapping[str, Json]) -> str:
    """Return a fault as a line: its name, rows and place."""
    place = f"partition {fault['partition']}" if fault["partition"] is not None else f"session {fault['session_id']}"
    if fault["first_offset"] is not None:
        place += f", offsets {fault['first_offset']} to {fault['last_offset']}"
    return f"{fault['fault']}: {fault['rows']} ({place})"


_CAUSES: Final = {
    "dead_letters": "the sink could not store these records, see sink_dead_letters",
    "end_missing": "Kafka has this record, let --from include it",
    "run_events_missing": "history's rows have just landed, or their contents have expired",
    "missing": "Kafka has no record for what is missing",
    "doubled": "stored twice, or Kafka has it twice",
    "unexpected": "no transaction counts these rows",
    "chain_broken": "a transition was changed, or lost",
    "deleted_unread": "Kafka deleted records before the sink read them",
    "topic_replaced": "another topic has the name of the one that the sink had read",
    "log_shorter": "Kafka lost records that the sink had read",
}


def _explain_fault(fault: Mapping[str, Json], behind: Collection[tuple[str, int]]) -> str:
    """Return why a repair has left a fault. `behind`: sinks that are behind, with the partition."""
    name, partition = str(fault["fault"]), fault["partition"]
    late = [number for sink, number in behind if sink == table_of_fault(name) and partition in (None, number)]
    if late and name.endswith("_missing") and not name.endswith(("_end_missing", "_topic_missing")):
        return f"sink {table_of_fault(name)} has not written all of Kafka's records yet, see sessionary lag"
    return next(text for end, text in _CAUSES.items() if name.endswith(end))


def dismiss_command(
    fault: Annotated[str, typer.Argument(help="Kind of the fault, as integrity check names it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why it can stay as it is; kept with the fault.")],
    by: Annotated[str, typer.Option("--by", help="Who decides it; kept with the fault.")],
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Its partition. Default: all.", show_default=False)
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", help="Id of its session. Default: all.", show_default=False)
    ] = None,
    late_s: LateOption = LATE_S,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Dismiss faults that cannot be repaired, with a reason.

    Checks all times, as integrity check does, and keeps the faults of this kind in the table
    dismissed_faults. No check reports them again, unless they have more rows or other offsets.
    Prints what was dismissed. The exit code is 4 if there is no such fault, 5 for a name that no
    fault has.
    """
    from sessionary.infra.topics import count_brokers

    if not reason.strip() or not by.strip():
        raise Invalid("invalid_value", "--reason and --by say why and who: give each some text")
    _check_fault_name(fault)
    count_brokers(kafka_settings(data))  # other questions to Kafka wait for longer
    all_found = find_faults(data, late_s=late_s)
    found = [
        row
        for row in all_found.faults
        if row["fault"] == fault and partition in (None, row["partition"]) and session in (None, row["session_id"])
    ]
    if not found:
        if all_found.away is not None:
            raise all_found.away
        raise NotFound(f"there is no such fault {fault}: see sessionary integrity check")
    kept = [{**row, "reason": reason, "dismissed_by": by} for row in found]
    clickhouse_client(data).insert_rows("dismissed_faults", kept)
    show_rows(found, as_json=as_json, columns=_COLUMNS)


def _check_fault_name(fault: str) -> None:
    """Raise `Invalid` for a name that no fault has; it has the names that look like it."""
    from difflib import get_close_matches

    from sessionary.sinks.integrity.landed_ends import END_FAULTS
    from sessionary.sinks.integrity.topic_counts import COUNTED_TOPICS, count_faults

    names = (*KNOWN_FAULTS, *END_FAULTS, *count_faults(COUNTED_TOPICS))
    if fault not in names:
        close = ", ".join(get_close_matches(fault, names)) or "see sessionary integrity check"
        raise Invalid("invalid_value", f"there is no kind of fault {fault!r}: {close}")


class FoundFaults(NamedTuple):
    """What a check found.

    Attributes:
        faults: The faults, with the columns of `v_integrity`.
        notes: Sentences on the requests that were not compared.
        away: Why the ends of tables were not compared.
    """

    faults: list[dict[str, Json]]
    notes: list[str]
    away: Unavailable | None


def find_faults(
    data: Path | None,
    since: datetime | None = None,
    until: datetime | None = None,
    late_s: int = LATE_S,
    *,
    with_kafka: bool = True,
) -> FoundFaults:
    """Return the faults of rows and requests.

    `with_kafka`: also compare the end of each table and the requests with Kafka. Then stderr says
    what was not compared.

    Blocks. Raises `Unavailable` if ClickHouse does not answer, `SettingsError`, `Invalid`.
    """
    from sessionary.sinks.integrity.landed_ends import find_end_faults
    from sessionary.sinks.integrity.topic_counts import compare_topics
    from sessionary.sinks.settings import SinkSettings

    client = clickhouse_client(data)
    times = [int((since or FIRST).timestamp()), ceil((until or LAST).timestamp())]
    first, last = (f"toDateTime({seconds}, 'UTC')" for seconds in times)
    faults = client.fetch_rows(
        f"SELECT * FROM {client.between}.v_integrity_between(from={first}, to={last}, late_s={late_s}) "
        "ORDER BY fault, partition, first_offset, session_id"
    )
    away: Unavailable | None = None
    notes: list[str] = []
    if with_kafka:
        settings = SinkSettings.from_env(stack_environment(data))
        try:
            faults += [fault._asdict() for fault in find_end_faults(settings, client.fetch_rows)]
        except Unavailable as error:  # what was found is reported all the same
            away = error
            print_message(f"the ends of the tables are not compared: {error}")
        compared = compare_topics(settings, client.fetch_rows, times[0], late_s)
        faults += [fault._asdict() for fault in compared.faults]
        notes = compared.notes
        for note in notes:
            print_message(note)
    return FoundFaults(faults, notes, away)
