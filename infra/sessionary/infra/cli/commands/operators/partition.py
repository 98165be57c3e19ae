"""`sessionary partition`: the state of every partition, and the ways out of a halt."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.errors import CheckFailed, NotFound
from sessionary.infra.cli.options import DataOption, JsonOption, control_api_client
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.infra.control_api_client import ControlApiClient, UnknownPartition

PartitionArgument = Annotated[int, typer.Argument(min=0, metavar="N", help="The partition's number.")]
ReasonOption = Annotated[str, typer.Option(help="Reason; the audit trail keeps it, with your principal.")]
_COLUMNS = ("partition", "state", "instance", "next_offset", "live_rows", "batch_number", "reason", "halted_at")


def describe_halt(partition: Mapping[str, Json]) -> str:
    """Return why a partition is not open, in a line."""
    number, detail = partition["partition"], partition["detail"]
    if partition["state"] != "halted":
        return f"partition {number} is {partition['state']}: {detail}"
    since = f"since {_instant(partition['halted_at_ms'])} UTC on {partition['instance']}"
    return f"partition {number} is halted {since}, {partition['reason']}: {detail}"


def list_partitions(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List every partition: its owner, its state, and its position.

    Needs SESSIONARY_CONTROL_URL and SESSIONARY_OPERATOR_TOKEN; a local stack has both.
    """
    partitions = control_api_client(data).list_partitions()
    if wants_json(as_json):
        show_rows(partitions, as_json=True)
        return
    show_rows(
        [{**row, "halted_at": _instant(row["halted_at_ms"])} for row in partitions], as_json=False, columns=_COLUMNS
    )
    halted = [partition for partition in partitions if partition["state"] == "halted"]
    for partition in partitions:
        if partition["state"] not in ("open", "opening"):
            print_message(describe_halt(partition))
    if halted:
        print_message(f"remove the cause, then run: sessionary partition retry {halted[0]['partition']}")


def retry_partition(
    partition: PartitionArgument,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open a halted partition again, once its cause is removed.

    The exit code is 1 if the partition is halted again.
    """
    _show_reopened(partition, lambda client: client.retry_partition(partition), data, as_json=as_json)


def accept_gap(
    partition: PartitionArgument,
    reason: ReasonOption,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up for good the events that were deleted before the partition read them (log_gap).

    The partition continues at the first event that the log still has. The exit code is 1 if the
    partition is halted again.
    """
    _show_reopened(partition, lambda client: client.accept_gap(partition, reason), data, as_json=as_json)


def accept_truncation(
    partition: PartitionArgument,
    reason: ReasonOption,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue in a log that lost judged events (log_truncated).

    The state keeps their effects. Later events at the same offsets are not judged. The exit code is
    1 if the partition is halted again.
    """
    _show_reopened(partition, lambda client: client.accept_truncation(partition, reason), data, as_json=as_json)


def repair_clock(
    partition: PartitionArgument,
    reason: ReasonOption,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a wrong clock of a partition to the broker's time, once the broker's clock is right.

    The partition is halted by clock_ahead, or is open and its clock is ahead. All
    sessions keep their remaining time. The exit code is 1 if the partition is halted
    again.
    """
    _show_reopened(partition, lambda client: client.repair_clock(partition, reason), data, as_json=as_json)


def skip_records(
    partition: PartitionArgument,
    offset: Annotated[int, typer.Argument(min=0, metavar="OFFSET", help="Offset of the record that halts it.")],
    reason: ReasonOption,
    to: Annotated[int | None, typer.Option(min=0, help="Skip all records up to this offset too.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue after the record that halts the partition; this record is never judged.

    The history keeps the record's bytes. The exit code is 1 if the partition is halted again.
    """
    _show_reopened(partition, lambda client: client.skip_records(partition, offset, to, reason), data, as_json=as_json)


def rebuild_rows(
    partition: Annotated[int | None, typer.Argument(min=0, metavar="N", help="The partition's number.")] = None,
    reason: Annotated[
        str | None, typer.Option(help="Reason; the audit trail keeps it, with your principal. Needed to change it.")
    ] = None,
    accept_rows: Annotated[
        bool, typer.Option("--accept-rows", help="Take the rows as they are, with all that they lack.")
    ] = False,
    accept_topics: Annotated[
        bool, typer.Option("--accept-topics", help="The topics are copies of the former ones, with the same offsets.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="All partitions that are halted by topic_replaced (--accept-topics).")
    ] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the rows of a partition whose changelog cannot be trusted.

    Ends changelog_incomplete, position_lost, changelog_unreadable and topic_replaced. By default,
    all events are folded again up to the last batch, if the log still has them. No output is sent
    twice. The exit code is 1 if the partition is halted again.
    """
    if accept_rows and accept_topics:
        raise typer.BadParameter("use --accept-rows or --accept-topics, not both")
    if every != (partition is None) or (every and not accept_topics):
        raise typer.BadParameter("name one partition; or use --all with --accept-topics")
    if reason is None and not dry_run:
        raise typer.BadParameter("say why, by --reason; or look first, by --dry-run")
    mode = "accept_rows" if accept_rows else "accept_topics" if accept_topics else "refold"
    client = control_api_client(data)
    numbers = [partition] if partition is not None else _list_replaced(client)
    halted: list[dict[str, Json]] = []
    for number in numbers:
        if dry_run:
            show_object(_of_known(client.plan_rebuild, number, mode), as_json=as_json)
            continue
        found = _of_known(client.rebuild_rows, number, mode, reason)
        show_object(found if wants_json(as_json) else _without_nulls(found), as_json=as_json)
        if found["state"] == "opening":
            print_message(f"partition {number} is not open yet; see: sessionary partition list")
        halted += [found] if found["state"] == "halted" else []
    if halted:
        raise CheckFailed("; ".join(map(describe_halt, halted)))


def _list_replaced(client: ControlApiClient) -> list[int]:
    found = [one["partition"] for one in client.list_partitions() if one["reason"] == "topic_replaced"]
    if not found:
        raise NotFound("no partition is halted by topic_replaced")
    return found


def _of_known(ask: Callable[..., dict[str, Json]], *arguments: Json) -> dict[str, Json]:
    try:
        return ask(*arguments)
    except UnknownPartition as error:
        raise NotFound(str(error)) from None


def _show_reopened(
    partition: int, ask: Callable[[ControlApiClient], dict[str, Json]], data: Path | None, *, as_json: bool
) -> None:
    """Ask for a new start of a halted partition, and show the result."""
    found = _of_known(ask, control_api_client(data))
    show_object(found if wants_json(as_json) else _without_nulls(found), as_json=as_json)
    if found["state"] == "halted":
        raise CheckFailed(f"{describe_halt(found)}; its cause is still there")
    if found["state"] == "opening":
        print_message(f"partition {partition} is not open yet; see: sessionary partition list")


def _instant(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _without_nulls(found: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in found.items() if value is not None}
