"""`sessionary spool`: lists, verifies and drains the clients' spools on this machine."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sessionary.infra.cli.errors import CheckFailed
from sessionary.infra.cli.options import DataOption, JsonOption
from sessionary.infra.cli.output import Progress, print_message
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.infra.environment import stack_environment

if TYPE_CHECKING:
    from sessionary.producers.settings import ProducerSettings

DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of the spools. Default: SESSIONARY_SPOOL_DIR.", show_default=False),
]
_COLUMNS = ("producer_id", "process", "events", "bytes", "oldest_age_s", "damaged", "set_aside", "folder")
_FINDING_COLUMNS = ("file", "process", "events", "lost", "damage")
_LOOK_S = 0.5


def list_spools(folder: DirOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the spools of living and dead clients, of every cluster, on this machine.

    The events of a living client may be acknowledged already.
    """
    from sessionary.producers.delivery.spool.orphans import spool_folders, summarize_folder

    root = folder or _spool_dir(data)
    found = [one for path in spool_folders(root) for one in summarize_folder(path)]
    rows: list[dict[str, Json]] = [
        {
            "folder": str(one.folder),
            "producer_id": one.producer_id,
            "process": _life_text(one.alive),
            "events": one.events,
            "bytes": one.bytes,
            "oldest_age_s": None if one.oldest_age_s is None else round(one.oldest_age_s, 1),
            "damaged": one.damaged,
            "set_aside": one.set_aside,
        }
        for one in found
    ]
    show_rows(rows, as_json=as_json, columns=_COLUMNS)
    if any(one.events and not one.alive for one in found):
        print_message(
            "dead processes left events: the next client of the service sends them, or sessionary spool drain"
        )


def verify_spools(folder: DirOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Read every event of every spool on this machine. The exit code is 1 if one is damaged."""
    from sessionary.producers.delivery.spool.orphans import spool_folders, verify_folder

    root = folder or _spool_dir(data)
    found = [one for path in spool_folders(root) for one in verify_folder(path)]
    rows: list[dict[str, Json]] = [
        {
            "file": str(one.path),
            "process": _life_text(one.alive),
            "events": one.events,
            "lost": one.lost,
            "damage": one.damage,
        }
        for one in found
    ]
    show_rows(rows, as_json=as_json, columns=_FINDING_COLUMNS)
    damaged = [one for one in found if one.damage is not None]
    if damaged:
        raise CheckFailed(
            f"{len(damaged)} of {len(found)} files are damaged, {sum(one.lost for one in damaged)} events cannot be "
            f"read: check the disk below {root}; delete the .damaged files once you need them no more"
        )


def drain_spools(
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Give up after so many seconds.")] = 600.0,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the events of dead clients, in the spool of this cluster and prefix, to Kafka.

    Needs SESSIONARY_BOOTSTRAP_SERVERS, and the clients' other settings. Living clients are left
    alone. The exit code is 1 if events are left.
    """
    from sessionary.infra.topics import count_brokers

    settings = _settings(data)
    if not settings.spool_folder.is_dir():
        show_object({"sent": 0, "expired": 0, "failed": 0, "damaged": 0, "left": 0}, as_json=as_json)
        return
    count_brokers(settings)  # otherwise the events would wait for it in vain
    outcome = _drain_spool(settings, timeout_s)
    show_object(outcome, as_json=as_json)
    if outcome["left"] or outcome["failed"] or outcome["damaged"]:
        raise CheckFailed(
            f"{outcome['left']} events are left in {settings.spool_folder}, {outcome['failed']} were refused by Kafka, "
            f"{outcome['damaged']} cannot be read: see the messages above"
        )


def _drain_spool(settings: "ProducerSettings", timeout_s: float) -> dict[str, int]:
    """Send the orphans, with progress; return the numbers of events by outcome."""
    import time

    from sessionary.producers.delivery.spool.transport import SpoolTransport

    progress, deadline_s = Progress(), time.monotonic() + timeout_s
    transport = SpoolTransport(
        settings.model_copy(update={"delivery_policy": "spool"}),
        str(uuid.uuid4()),
        lambda error: print_message(f"sessionary: {error}"),
    )
    try:
        while True:
            left = transport.flush(_LOOK_S)
            counters = transport.counters
            progress(f"sent {counters.delivered:,} of {counters.replayed:,} events")
            if (not left and not transport.may_take_over) or time.monotonic() > deadline_s:
                break
    finally:
        left = transport.close(0.0)
        progress.clear()
    counters = transport.counters
    return {
        "sent": counters.delivered,
        "expired": counters.expired,
        "failed": counters.failed,
        "damaged": counters.damaged,
        "left": left,
    }


def _settings(data: Path | None) -> "ProducerSettings":
    from sessionary.producers.settings import ProducerSettings

    return ProducerSettings.from_env(stack_environment(data))


def _spool_dir(data: Path | None) -> Path:
    """Return the folder of all spools. Raises `SpoolUnusable` if this user has no home."""
    return _settings(data).spool_folder.parent


def _life_text(alive: bool) -> str:
    return "alive" if alive else "dead"
