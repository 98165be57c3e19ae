"""`sessionary spool`: lists, verifies and drains the clients' spools on this machine."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sessionary.infra.cli.errors import CheckFailed
from sessionary.infra.cli.options import DataOption, JsonOption
from sessionary.infra.cli.output import Progress, print_message
from sessionary.infra.cli.tables import Json, show_object, show_rows
from sessionary.infra.environment import stack_environment
from sessionary.schemas.errors import SettingsError

if TYPE_CHECKING:
    from sessionary.producers.delivery.spool.labels import FolderLabel
    from sessionary.producers.delivery.spool.orphans import SpoolSummary
    from sessionary.producers.settings import ProducerSettings


class Old(StrEnum):
    """The treatment of events that seem too old; the values of `OldEvents`."""

    wait = "wait"
    send = "send"
    expire = "expire"


DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of the spools. Default: SESSIONARY_SPOOL_DIR.", show_default=False),
]
_COLUMNS = (
    *("producer_id", "process", "events", "bytes", "oldest_age_s", "old", "expired", "damaged", "set_aside"),
    *("servers", "cluster", "folder"),
)
_FINDING_COLUMNS = ("file", "process", "events", "lost", "damage")
_OUTCOMES = ("sent", "expired", "failed", "damaged", "left")
_LOOK_S = 0.5


def list_spools(folder: DirOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the spools of living and dead clients, of every cluster, on this machine.

    Kafka may have acknowledged events of a living client already, and some of a client that died
    while it was sending: sent again, these are known as duplicates. Events are old if they were
    written more than seven days ago by the clock of this machine, and expired if a client has given
    them up in an .expired file. The servers are those that the folder's last client named; the
    cluster is the one that the process itself has reached.
    """
    found = list(_find_spools(folder or _spool_dir(_settings(data))))
    rows: list[dict[str, Json]] = [
        {
            "folder": str(one.folder),
            "producer_id": one.producer_id,
            "process": _life_text(one.alive),
            "events": one.events,
            "bytes": one.bytes,
            "oldest_age_s": None if one.oldest_age_s is None else round(one.oldest_age_s, 1),
            "old": one.old,
            "expired": one.expired,
            "damaged": one.damaged,
            "set_aside": one.set_aside,
            "servers": None if label is None else label.bootstrap_servers,
            "cluster": one.cluster_id,
        }
        for label, one in found
    ]
    show_rows(rows, as_json=as_json, columns=_COLUMNS)
    for fault in _describe_faults([one for _, one in found]):
        print_message(f"{fault.found}: {fault.advice}")


class _Fault(NamedTuple):
    """What is wrong with some spools, and what to do."""

    found: str
    advice: str


def find_spool_faults(environ: Mapping[str, str]) -> tuple[str, list[str], list[str]] | None:
    """Return what doctor reports of this machine's spools: all, the faults, and advice for each.

    None if no client has run here. Folders that are certainly for another cluster or another prefix
    are only counted. Raises `SettingsError`, `OSError`.
    """
    from sessionary.producers.settings import ProducerSettings

    settings = ProducerSettings.from_env(environ)
    found = [] if settings.spool_dir is None else list(_find_spools(settings.spool_dir))
    if not found:
        return None
    clusters = {one.cluster_id for _, one in found if one.folder == settings.spool_folder} - {None}

    def is_elsewhere(label: "FolderLabel | None", one: "SpoolSummary") -> bool:
        other_prefix = label is not None and label.topic_prefix != settings.topic_prefix
        return other_prefix or (bool(clusters) and one.cluster_id not in {None, *clusters})

    ours = [one for label, one in found if not is_elsewhere(label, one)]
    waiting = sum(one.events for one in ours if one.alive)
    described = (
        f"{settings.spool_dir}: {sum(one.alive for one in ours)} living clients with {waiting} events, "
        f"{len(found) - len(ours)} spools for other clusters"
    )
    faults = _describe_faults(ours)
    return described, [fault.found for fault in faults], [fault.advice for fault in faults]


def _find_spools(root: Path) -> "Iterator[tuple[FolderLabel | None, SpoolSummary]]":
    """Yield each process's spool below a folder, with the label of its folder. Reads every file."""
    from sessionary.producers.delivery.spool.labels import read_label
    from sessionary.producers.delivery.spool.orphans import spool_folders, summarize_folder
    from sessionary.producers.delivery.spool.spool import AGE_LIMIT_MS

    oldest_ms = time.time_ns() // 1_000_000 - AGE_LIMIT_MS
    for path in spool_folders(root):
        label = read_label(path)
        for one in summarize_folder(path, oldest_ms):
            yield label, one


def _describe_faults(found: "Sequence[SpoolSummary]") -> list[_Fault]:
    dead = [one for one in found if one.events and not one.alive]
    faults = []
    if young := sum(one.events - one.old for one in dead):
        advice = "the next client of the service sends them, or sessionary spool drain; see sessionary spool list"
        faults.append(_Fault(f"dead processes left {young} events", advice))
    if old := sum(one.old for one in dead):
        advice = "check the clock; a client that lives for a day gives them up, sessionary spool drain --old at once"
        faults.append(_Fault(f"dead processes left {old} events that are older than 7 days by this clock", advice))
    if expired := sum(one.expired for one in found):
        advice = "sessionary spool drain --old send sends them after all; else delete the .expired files"
        faults.append(_Fault(f"{expired} events were given up", advice))
    if damaged := sum(one.damaged for one in found) + sum(one.set_aside for one in found):
        faults.append(_Fault(f"{damaged} events or files are damaged", "sessionary spool verify names them"))
    return faults


def verify_spools(folder: DirOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Read every event of every spool on this machine. The exit code is 1 if one is damaged."""
    from sessionary.producers.delivery.spool.orphans import spool_folders, verify_folder

    root = folder or _spool_dir(_settings(data))
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
    old: Annotated[
        Old,
        typer.Option(
            "--old",
            help="Events older than 7 days by this machine's clock: leave them, send them with those in .expired "
            "files, or give them up. An event older than 14 days may begin its session anew.",
        ),
    ] = Old.wait,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--folder",
            help="Also this folder, with the events of processes that never reached Kafka: its servers are another "
            "name of this cluster. Repeatable.",
        ),
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the events of dead clients, in the spools of this cluster and prefix, to Kafka.

    Needs SESSIONARY_BOOTSTRAP_SERVERS, and the clients' other settings. Living clients are left
    alone. Processes that named the cluster's servers otherwise are found by the cluster's id, if
    they have reached Kafka. The exit code is 1 if events are left.
    """
    from sessionary.infra.topics import find_cluster_id
    from sessionary.producers.delivery.spool.orphans import revive_expired

    settings = _settings(data)
    root = settings.spool_folder.parent
    named = [root / Path(name).name for name in others or ()]
    if absent := next((path for path in named if not path.is_dir()), None):
        raise SettingsError(f"--folder: there is no folder {absent}; sessionary spool list names them")
    if not root.is_dir() or not any(path.is_dir() for path in root.iterdir()):
        show_object(dict.fromkeys(_OUTCOMES, 0), as_json=as_json)
        return
    cluster_id = find_cluster_id(settings)  # otherwise the events would wait for Kafka in vain
    for path in named:
        _refuse_foreign(path, settings.topic_prefix, cluster_id)
    folders = sorted({settings.spool_folder, *named})
    if old is Old.send:
        for path in folders:
            revive_expired(path)
    outcome = _drain_spool(settings, timeout_s, old, folders, cluster_id)
    show_object(outcome, as_json=as_json)
    if outcome["left"] or outcome["failed"] or outcome["damaged"]:
        places = ", ".join(map(str, folders))
        raise CheckFailed(
            f"{outcome['left']} events are left in {places}, {outcome['failed']} were refused by Kafka, "
            f"{outcome['damaged']} cannot be read: see the messages above"
        )
    _, elsewhere = _split_spools(root, folders, settings.topic_prefix, cluster_id)
    if events := sum(one.events for one in elsewhere):
        print_message(
            f"{events} events of dead processes are in folders for other servers: see "
            "sessionary spool list; if they name this cluster too, add --folder"
        )


def _refuse_foreign(folder: Path, topic_prefix: str, cluster_id: str | None) -> None:
    """Raise `SettingsError` if a folder has events for another prefix or another cluster."""
    from sessionary.producers.delivery.spool.labels import read_label
    from sessionary.producers.delivery.spool.orphans import summarize_folder

    label = read_label(folder)
    if label is not None and label.topic_prefix != topic_prefix:
        raise SettingsError(
            f"--folder: {folder} is for the topic prefix {label.topic_prefix}, not {topic_prefix}: drain it with "
            f"SESSIONARY_TOPIC_PREFIX={label.topic_prefix}"
        )
    found = (one.cluster_id for one in summarize_folder(folder) if one.events)
    if other := next((each for each in found if each not in (None, cluster_id)), None):
        raise SettingsError(
            f"--folder: {folder} has events for the cluster {other}, and SESSIONARY_BOOTSTRAP_SERVERS leads to "
            f"{cluster_id or 'one without an id'}: let it name the servers of {other}"
        )


def _split_spools(
    root: Path, folders: Sequence[Path], topic_prefix: str, cluster_id: str | None
) -> "tuple[list[SpoolSummary], list[SpoolSummary]]":
    """Return the spools of dead processes that a drain takes over, and the others."""
    ours: list[SpoolSummary] = []
    others: list[SpoolSummary] = []
    for label, one in _find_spools(root):
        is_alias = cluster_id is not None and one.cluster_id == cluster_id
        is_ours = one.folder in folders or (is_alias and label is not None and label.topic_prefix == topic_prefix)
        if not one.alive:
            (ours if is_ours else others).append(one)
    return ours, others


def _drain_spool(
    settings: "ProducerSettings", timeout_s: float, old: Old, folders: Sequence[Path], cluster_id: str | None
) -> dict[str, int]:
    """Send the orphans, with progress; return the numbers of events by outcome."""
    from sessionary.producers.delivery.spool.transport import SpoolTransport

    progress, deadline_s = Progress(), time.monotonic() + timeout_s
    transport = SpoolTransport(
        settings.model_copy(update={"delivery_policy": "spool"}),
        str(uuid.uuid4()),
        lambda error: print_message(f"sessionary: {error}"),
        old.value,
    )
    try:
        if cluster_id is not None:
            transport.adopt_cluster(cluster_id)
        transport.add_folders(dict.fromkeys(folders, frozenset({cluster_id, None})))
        while True:
            may_take_over = transport.may_take_over  # first: what is taken over later is not in `left`
            left = transport.flush(_LOOK_S)
            counters = transport.counters
            progress(f"sent {counters.delivered:,} of {counters.replayed:,} events")
            if (not left and not may_take_over) or time.monotonic() > deadline_s:
                break
    finally:
        left = transport.close(0.0)
        progress.clear()
    counters = transport.counters
    found, _ = _split_spools(settings.spool_folder.parent, folders, settings.topic_prefix, cluster_id)
    left = max(left, sum(one.events for one in found))  # with those that seem too old
    values = (counters.delivered, counters.expired, counters.failed, counters.damaged, left)
    return dict(zip(_OUTCOMES, values, strict=True))


def _settings(data: Path | None) -> "ProducerSettings":
    from sessionary.producers.settings import ProducerSettings

    return ProducerSettings.from_env(stack_environment(data))


def _spool_dir(settings: "ProducerSettings") -> Path:
    """Return the folder of all spools. Raises `SpoolUnusable` if this user has no home."""
    return settings.spool_folder.parent


def _life_text(alive: bool) -> str:
    return "alive" if alive else "dead"
