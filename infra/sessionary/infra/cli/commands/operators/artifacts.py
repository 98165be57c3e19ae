"""`sessionary artifact`: artifacts that have expired."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from sessionary.infra.cli.options import DataOption, JsonOption, clickhouse_client
from sessionary.infra.cli.output import Progress, print_message
from sessionary.infra.cli.tables import show_object
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.environment import stack_environment
from sessionary.producers.artifacts.library import body_name, deleted_name, stream_folder
from sessionary.producers.artifacts.stores import ArtifactStore
from sessionary.producers.errors import ArtifactMissing
from sessionary.schemas.errors import SettingsError

# Marks artifacts that have expired, and removes their bodies a week later.
#
# The known artifacts are those of ClickHouse's `v_artifacts`. Each step can be repeated. The mark
# is a row of `artifact_deletions`, written before a body is touched. A marked body is copied to
# another name before its own is removed, so that the store has it under one of them at any time.
# The removal of a body is written afterwards. A body stays in place while one artifact of its hash
# is neither expired nor deleted, and is restored if it is saved again.


_BLOCK: Final = 1_000
_KEPT_COLUMNS: Final = (
    *("tenant_id", "session_id", "artifact_id", "run_id", "artifact_type", "uri", "size_bytes", "sha256", "chunks"),
    *("created_at", "completed_at", "deleted_at"),
)
# The last sign of life counts. Personal columns, such as the address, are read before they expire.
_EXPIRED: Final = (
    "(time <= {now:DateTime64(3, 'UTC')} - toIntervalDay({days:UInt16}) "
    "OR personal_expires <= {now:DateTime64(3, 'UTC')} + INTERVAL 1 DAY)"
)
_CANDIDATES: Final = f"""
SELECT {", ".join(_KEPT_COLUMNS)}, state = 'soft_deleted' AS is_marked,
    ifNull(deleted_at <= {{now:DateTime64(3, 'UTC')}} - INTERVAL 7 DAY, 0) AS is_due
FROM v_artifacts
WHERE state = 'soft_deleted' OR (state IN ('open', 'complete') AND {_EXPIRED})
ORDER BY created_at, artifact_id"""
_LIVE: Final = f"""
SELECT DISTINCT assumeNotNull(sha256) AS sha256 FROM v_artifacts
WHERE state = 'complete' AND sha256 IS NOT NULL AND NOT {_EXPIRED}"""


class SweepReport(NamedTuple):
    """The result of a sweep, done or planned.

    Attributes:
        marked: Artifacts that have expired, and are marked now.
        withdrawn: Bodies that are not served from now on.
        restored: Bodies that are served again, because they were saved again.
        purged: Artifacts whose body is removed: marked for a week.
        freed_bytes: Size of these bodies.
        waiting: Artifacts that are marked, and whose body is still there.
        elsewhere: Artifacts that have expired, and whose body is in no place of this store.
    """

    marked: int = 0
    withdrawn: int = 0
    restored: int = 0
    purged: int = 0
    freed_bytes: int = 0
    waiting: int = 0
    elsewhere: int = 0


class _Body(NamedTuple):
    """One body, and all artifacts that have it and are marked or have expired."""

    sha256: str | None  # None: chunks of an artifact that was never complete
    artifacts: tuple[Row, ...]
    is_live: bool  # an artifact of this hash is neither

    @property
    def is_due(self) -> bool:
        """Whether each of the marks is a week old."""
        return not self.is_live and all(row["is_marked"] and row["is_due"] for row in self.artifacts)


class ArtifactSweep:
    """One sweep of one store. `now` is a time of the server as text, UTC; None asks for it."""

    def __init__(self, source: ClickHouseClient, store: ArtifactStore, days: int, now: str | None = None) -> None:
        """Read the expired artifacts. Raises as the client does."""
        self._source, self._store = source, store
        self._now = now or str(source.fetch_one("SELECT toString(now64(3, 'UTC')) AS now")["now"])
        times: dict[str, str | int] = {"now": self._now, "days": days}
        rows = source.fetch_rows(_CANDIDATES, **times)
        self._root = f"{store.uri('').rstrip('/')}/"
        mine = [row for row in rows if self._is_here(row)]
        here = {_key(row) for row in mine}
        others = [row for row in rows if _key(row) not in here]
        # An artifact of another store holds no body of this one; an uncertain one does.
        live = {str(row["sha256"]) for row in source.fetch_rows(_LIVE, **times)}
        self._bodies = group_bodies(mine, live | {str(row["sha256"]) for row in others})
        self._expired = [row for row in mine if not row["is_marked"]]
        self._elsewhere = sum(not row["is_marked"] for row in others)

    def run(self, *, dry_run: bool, progress: Callable[[str], None] = lambda _: None) -> SweepReport:
        """Mark, withdraw, restore and remove; with `dry_run` only look.

        May be repeated after an error. Raises as the client does, and `Unavailable` if the store
        does not answer.
        """
        if not dry_run:
            for done in range(0, len(self._expired), _BLOCK):
                progress(f"marking {done:,} of {len(self._expired):,} artifacts")
                block = self._expired[done : done + _BLOCK]
                self._write_rows({**row, "deleted_at": self._now, "stage": 1} for row in block)
        report = SweepReport(marked=len(self._expired), elsewhere=self._elsewhere)
        for number, body in enumerate(self._bodies, 1):
            progress(f"bodies {number:,} of {len(self._bodies):,}")
            report = self._settle_body(body, report, dry_run=dry_run)
        return report

    def _settle_body(self, body: _Body, report: SweepReport, *, dry_run: bool) -> SweepReport:
        count = len(body.artifacts)
        waiting = report._replace(waiting=report.waiting + count)
        if body.sha256 is not None:
            served, put_away = body_name(body.sha256), deleted_name(body.sha256)
            if body.is_live:
                if not self._store.has(put_away):
                    return waiting
                self._move(put_away, served, dry_run=dry_run)
                return waiting._replace(restored=report.restored + 1)
            # Also if it is due: the next sweep may know of an artifact that was saved again.
            if self._store.has(served):
                self._move(served, put_away, dry_run=dry_run)
                return waiting._replace(withdrawn=report.withdrawn + 1)
        if not body.is_due:
            return waiting
        if not dry_run:
            self._purge_body(body)
        size = max(row["size_bytes"] or 0 for row in body.artifacts)
        return report._replace(purged=report.purged + count, freed_bytes=report.freed_bytes + size)

    def _move(self, source: str, target: str, *, dry_run: bool) -> None:
        if dry_run:
            return
        try:
            self._store.write(target, self._store.read(source))
        except ArtifactMissing:
            return  # another sweep was faster
        self._store.remove(source)

    def _purge_body(self, body: _Body) -> None:
        if body.sha256 is not None:
            self._store.remove(deleted_name(body.sha256))
        for row in body.artifacts:
            folder = stream_folder(row["artifact_id"])
            if not row["uri"] or row["uri"] == self._store.uri(folder):
                for name in self._store.names(folder):
                    self._store.remove(f"{folder}/{name}")
        self._write_rows({**row, "purged_at": self._now, "stage": 2} for row in body.artifacts)

    def _is_here(self, row: Row) -> bool:
        if row["uri"]:
            return bool(row["uri"].startswith(self._root))
        sha256 = row["sha256"]  # without an address: personal data has expired
        if sha256 is None:
            return bool(self._store.names(stream_folder(row["artifact_id"])))
        return self._store.has(body_name(sha256)) or self._store.has(deleted_name(sha256))

    def _write_rows(self, rows: Iterable[Row]) -> None:
        columns = {*_KEPT_COLUMNS, "purged_at", "stage"}
        kept = [{name: _plain_time(row[name]) for name in row.keys() & columns} for row in rows]
        self._source.insert_rows("artifact_deletions", kept)


def group_bodies(rows: Sequence[Row], live: set[str]) -> list[_Body]:
    """Return the bodies of artifacts that have expired or are marked, in their order. Pure.

    `live`: hashes of artifacts that are neither.
    """
    groups: dict[tuple[str | None, str], list[Row]] = {}
    for row in rows:
        sha256 = row["sha256"]
        groups.setdefault((sha256, "" if sha256 else row["artifact_id"]), []).append(row)
    return [_Body(sha256, tuple(group), sha256 in live) for (sha256, _), group in groups.items()]


def _key(row: Row) -> tuple[str, str, str]:
    return row["tenant_id"], row["session_id"], row["artifact_id"]


def _plain_time(value: object) -> object:
    """Return a time as ClickHouse reads it in rows, and any other value as it is."""
    if isinstance(value, str) and len(value) == len("2026-01-01T00:00:00.000Z") and value[10] == "T":
        return value.replace("T", " ").rstrip("Z")
    return value


def sweep_command(
    store: Annotated[str, typer.Option("--store", help="Folder or URL of the store, as the clients name it.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the planned actions.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mark artifacts older than the setting; remove bodies that were marked a week ago.

    Marked artifacts are no longer served. Their hashes and sizes stay in ClickHouse's
    v_artifacts. Run the sweep once a day. It can be repeated at any time, also after a kill.
    """
    from sessionary.producers.artifacts import open_store
    from sessionary.sinks.settings import RetentionSettings

    days = RetentionSettings.from_env(stack_environment(data)).retention_artifacts_days
    sweep = ArtifactSweep(clickhouse_client(data), open_store(_place(store)), days)
    progress = Progress()
    try:
        report = sweep.run(dry_run=dry_run, progress=progress)
    finally:
        progress.clear()
    if report.elsewhere:
        print_message(
            f"{report.elsewhere:,} artifacts have expired whose bodies are not at {store}: sweep their store by "
            "the address that its clients use (v_artifacts has it as uri)"
        )
    show_object({"dry_run": dry_run, "days": days, **report._asdict()}, as_json=as_json)


def _place(store: str) -> str | Path:
    """Return the URL or folder that is named. Raises `SettingsError` if there is no such folder."""
    if "://" in store or store.startswith("file:"):
        return store
    folder = Path(store)
    if not folder.is_dir():
        raise SettingsError(f"--store: there is no folder {store}; name the one that the clients use")
    return folder
