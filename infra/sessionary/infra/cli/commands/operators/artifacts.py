"""`sessionary artifact`: artifacts that have expired."""

from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.options import DataOption, JsonOption, clickhouse_client
from sessionary.infra.cli.output import print_message
from sessionary.infra.cli.progress import Progress
from sessionary.infra.cli.tables import show_object
from sessionary.infra.environment import stack_environment
from sessionary.schemas.errors import SettingsError


def sweep_command(
    store: Annotated[str, typer.Option("--store", help="Folder or URL of the store, as the clients name it.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mark artifacts that are older than the setting; remove bodies that were marked a week ago.

    What is marked is not served any more. Its hash and size stay in ClickHouse's v_artifacts. Run
    it once a day; you can repeat it at any time, also after it was killed.
    """
    from sessionary.infra.governance.artifact_sweep import ArtifactSweep
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
