"""`sessionary partition`: the state of every partition, and a new start for a halted one."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.errors import CheckFailed, NotFound
from sessionary.infra.cli.options import DataOption, JsonOption
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.infra.control_api_client import ControlApiClient, UnknownPartition
from sessionary.infra.environment import stack_environment
from sessionary.infra.settings import OperatorSettings

app = typer.Typer(no_args_is_help=True, help="List the partitions; open a halted one again.")
_COLUMNS = ("partition", "state", "instance", "next_offset", "live_rows", "batch_number", "reason", "halted_at")


def describe_halt(partition: Mapping[str, Json]) -> str:
    """Return what happened to a partition that is not open, in a line."""
    number, detail = partition["partition"], partition["detail"]
    if partition["state"] != "halted":
        return f"partition {number} is {partition['state']}: {detail}"
    since = f"since {_instant(partition['halted_at_ms'])} UTC on {partition['instance']}"
    return f"partition {number} is halted {since}, {partition['reason']}: {detail}"


@app.command("list")
def list_partitions(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List every partition: its owner, its state, and how far it is.

    Needs SESSIONARY_CONTROL_URL and SESSIONARY_OPERATOR_TOKEN; a local stack has both.
    """
    partitions = _make_client(data).list_partitions()
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


@app.command("retry")
def retry_partition(
    partition: Annotated[int, typer.Argument(min=0, metavar="N", help="The partition's number.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open a halted partition again, once its cause is removed.

    The exit code is 1 if it is halted again.
    """
    try:
        found = _make_client(data).retry_partition(partition)
    except UnknownPartition as error:
        raise NotFound(str(error)) from None
    show_object(found if wants_json(as_json) else _without_nulls(found), as_json=as_json)
    if found["state"] == "halted":
        raise CheckFailed(f"{describe_halt(found)}; its cause is still there")
    if found["state"] == "opening":
        print_message(f"partition {partition} still reads its changelog; see: sessionary partition list")


def _make_client(data: Path | None) -> ControlApiClient:
    return ControlApiClient(OperatorSettings.from_env(stack_environment(data)))


def _instant(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _without_nulls(found: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in found.items() if value is not None}


__all__ = ["app", "describe_halt"]
