"""Artifacts that have expired are marked, and removed a week later, whatever kills the sweep."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.operators.artifacts import ArtifactSweep, SweepReport
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.kpi.key_figures import ask_overdue_artifacts
from sessionary.producers.artifacts import Artifact, ArtifactLibrary, FolderStore
from sessionary.producers.errors import ArtifactDeleted, ArtifactMissing
from sessionary.schemas.events import ArtifactSoftDeleted, Payload
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.settings import RetentionSettings
from tests.integration.test_run_views import Runs
from tests.support.pipelines import run_sql

DAYS = 7


class Reports(Runs):
    """A session whose events are in ClickHouse at once, with a log time of some days ago."""

    age_days = 8.0

    def at_us(self, offset: int, age_days: float = 1) -> int:
        return super().at_us(offset, self.age_days)

    def emit(self, payload: Payload, **marks: Any) -> str:
        self.send(payload, run="r1")
        return ""


class Artifacts:
    """A library in a folder, the events of what it saves, and sweeps of it."""

    def __init__(self, clickhouse: ClickHouseSettings, folder: Path) -> None:
        self.reports = Reports(clickhouse)
        self.source = ClickHouseClient(clickhouse)
        self.store = FolderStore(folder)
        self.library = ArtifactLibrary(self.store)
        self.folder = folder

    def save(self, body: str, age_days: float) -> Artifact:
        self.reports.age_days = age_days
        return self.library.save(self.reports, body, "markdown")

    def sweep(self, after_days: float = 0, *, dry_run: bool = False, store: Any = None, source: Any = None) -> Any:
        now = (datetime.now(UTC) + timedelta(days=after_days)).strftime("%Y-%m-%d %H:%M:%S.000")
        sweep = ArtifactSweep(source or self.source, store or self.store, DAYS, now)
        return sweep.run(dry_run=dry_run)

    def states(self) -> list[tuple[Any, ...]]:
        return self.reports.ask("SELECT state, sha256, size_bytes, artifact_type FROM v_artifacts ORDER BY created_at")

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def artifacts(tables: ClickHouseSettings, tmp_path: Path) -> Artifacts:
    return Artifacts(tables, tmp_path / "store")


def test_a_body_is_not_served_from_day_0_is_there_on_day_6_and_gone_on_day_8(artifacts: Artifacts) -> None:
    old, young = artifacts.save("old", 8), artifacts.save("young", 6)
    path = f"sha256/{old.sha256[:2]}/{old.sha256}"
    assert artifacts.sweep() == SweepReport(marked=1, withdrawn=1, waiting=1)
    with pytest.raises(ArtifactDeleted, match="expired"):
        artifacts.library.load(old)
    assert artifacts.library.load(young) == b"young"
    # On day 6 the younger one is marked too.
    assert artifacts.sweep(6) == SweepReport(marked=1, withdrawn=1, waiting=2)
    assert (artifacts.folder / "deleted" / path).read_bytes() == b"old"
    assert artifacts.sweep(8) == SweepReport(purged=1, freed_bytes=3, waiting=1)
    assert not [name for name in artifacts.files() if old.sha256 in name]
    with pytest.raises(ArtifactMissing) as raised:
        artifacts.library.load(old)
    assert not isinstance(raised.value, ArtifactDeleted)
    # Hash and metadata stay, also if the events are gone.
    kept = artifacts.states()
    assert kept == [("purged", old.sha256, 3, "markdown"), ("soft_deleted", young.sha256, 5, "markdown")]
    run_sql(artifacts.reports.rows.clickhouse, f"TRUNCATE TABLE {artifacts.source.database}.run_events")
    assert artifacts.states() == kept
    assert artifacts.reports.ask("SELECT uri, run_id FROM v_artifacts WHERE state = 'purged'") == [(old.uri, "r1")]


def test_an_artifact_is_overdue_a_day_after_it_expired_until_a_sweep_marks_it(artifacts: Artifacts) -> None:
    clickhouse = artifacts.reports.rows.clickhouse
    assert ask_overdue_artifacts(clickhouse, DAYS) == 0
    artifacts.save("expired, and not for a day", DAYS + 0.9)
    assert ask_overdue_artifacts(clickhouse, DAYS) == 0
    artifacts.save("expired for a day", DAYS + 1.1)
    assert ask_overdue_artifacts(clickhouse, DAYS) == 1
    assert ask_overdue_artifacts(clickhouse, DAYS + 1) == 0
    assert artifacts.sweep(dry_run=True).marked == 2
    assert ask_overdue_artifacts(clickhouse, DAYS) == 1
    artifacts.sweep()
    assert ask_overdue_artifacts(clickhouse, DAYS) == 0


def test_a_body_stays_while_a_younger_artifact_has_the_same_hash(artifacts: Artifacts) -> None:
    first, second = artifacts.save("same", 8), artifacts.save("same", 1)
    assert artifacts.sweep() == SweepReport(marked=1, waiting=1)
    assert artifacts.library.load(second) == b"same"
    assert artifacts.sweep(8) == SweepReport(marked=1, withdrawn=1, waiting=2)
    assert artifacts.sweep(14) == SweepReport(waiting=2), "the second mark is six days old"
    assert artifacts.sweep(16) == SweepReport(purged=2, freed_bytes=4)
    assert [state[0] for state in artifacts.states()] == ["purged", "purged"]
    assert first.artifact_id != second.artifact_id
    assert artifacts.files() == []


def test_a_body_that_is_saved_again_is_served_again(artifacts: Artifacts) -> None:
    artifacts.save("text", 8)
    artifacts.sweep()
    again = artifacts.save("text", 0)
    assert artifacts.library.load(again) == b"text"
    # Its events are late: another sweep takes it for the old one, and the next one brings it back.
    artifacts.store.remove(f"sha256/{again.sha256[:2]}/{again.sha256}")
    assert artifacts.sweep(1) == SweepReport(restored=1, waiting=1)
    assert artifacts.library.load(again) == b"text"


def test_a_body_that_is_found_served_when_it_is_due_is_not_removed_by_the_same_sweep(artifacts: Artifacts) -> None:
    old = artifacts.save("text", 8)
    artifacts.sweep()
    artifacts.store.write(f"sha256/{old.sha256[:2]}/{old.sha256}", b"text")  # saved again, its events are late
    assert artifacts.sweep(8) == SweepReport(withdrawn=1, waiting=1)
    assert artifacts.sweep(9) == SweepReport(purged=1, freed_bytes=4)


def test_chunks_of_a_stream_that_was_never_completed_go_too(artifacts: Artifacts) -> None:
    artifacts.reports.age_days = 8
    stream = artifacts.library.stream(artifacts.reports, "markdown")
    stream.append("# Title")
    assert artifacts.sweep() == SweepReport(marked=1, waiting=1)
    assert len(artifacts.files()) == 1
    assert artifacts.sweep(8).purged == 1
    assert artifacts.files() == []
    assert artifacts.states() == [("purged", None, None, "markdown")]


def test_an_artifact_that_its_agent_deleted_is_removed_a_week_after_that(artifacts: Artifacts) -> None:
    young = artifacts.save("x", 1)
    artifacts.reports.send(ArtifactSoftDeleted(young.artifact_id))
    assert artifacts.sweep() == SweepReport(withdrawn=1, waiting=1)
    assert artifacts.sweep(8) == SweepReport(purged=1, freed_bytes=1)


def test_artifacts_of_another_store_are_counted_and_left_alone(artifacts: Artifacts, tmp_path: Path) -> None:
    artifacts.save("text", 8)
    there = FolderStore(tmp_path / "other")
    assert artifacts.sweep(store=there) == SweepReport(elsewhere=1)
    assert artifacts.states()[0][0] == "complete"


class _Killed(BaseException):
    """Stands for the end of the process."""


class _Mortal:
    """Passes calls on, and ends the process before the n-th that changes something."""

    def __init__(self, target: object, count: Callable[[], None]) -> None:
        self._target, self._count = target, count

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "remove", "insert_rows"):
            self._count()
        return getattr(self._target, name)


def test_a_sweep_that_is_killed_before_any_change_loses_nothing_and_is_finished_by_the_next_one(
    artifacts: Artifacts,
) -> None:
    old, shared = artifacts.save("old", 8), artifacts.save("shared", 8)
    artifacts.save("shared", -30)  # still young on each of these days
    bodies = {old.sha256: b"old", shared.sha256: b"shared"}
    kills = 0
    for limit in range(100):
        run_sql(artifacts.reports.rows.clickhouse, f"TRUNCATE TABLE {artifacts.source.database}.artifact_deletions")
        for name in artifacts.files():
            artifacts.store.remove(name)
        for sha256, body in bodies.items():
            artifacts.store.write(f"sha256/{sha256[:2]}/{sha256}", body)
        left = limit

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise _Killed

        try:
            for day in (0, 8):
                artifacts.sweep(day, store=_Mortal(artifacts.store, count), source=_Mortal(artifacts.source, count))
        except _Killed:
            kills += 1
        # Whenever it is killed, a body that is gone was marked for a week.
        gone = not any(old.sha256 in name for name in artifacts.files())
        assert not gone or limit > 3
        for day in (8, 16):  # 16: a mark that was set on day 8 is a week old then
            artifacts.sweep(day)
        assert artifacts.files() == [f"sha256/{shared.sha256[:2]}/{shared.sha256}"]
        assert [state[0] for state in artifacts.states()] == ["purged", "soft_deleted", "complete"]
        if left >= 0:
            break
    assert kills == limit > 3


def test_the_command_says_what_it_would_do_then_does_it_and_may_be_repeated(
    artifacts: Artifacts,
    tables: ClickHouseSettings,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", tables.clickhouse_url)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_DATABASE", tables.clickhouse_database)
    monkeypatch.setenv("SESSIONARY_RETENTION_ARTIFACTS_DAYS", str(DAYS))
    old = artifacts.save("old", 8)
    command = ["artifact", "sweep", "--store", str(artifacts.folder), "--json"]
    wanted = {"days": DAYS, **SweepReport(marked=1, withdrawn=1, waiting=1)._asdict()}
    assert run([*command, "--dry-run"]) == 0
    assert json.loads(capfd.readouterr().out) == {"dry_run": True, **wanted}
    assert artifacts.library.load(old) == b"old"
    assert run(command) == 0
    assert json.loads(capfd.readouterr().out) == {"dry_run": False, **wanted}
    assert run(command) == 0
    assert json.loads(capfd.readouterr().out) == {"dry_run": False, "days": DAYS, **SweepReport(waiting=1)._asdict()}
    assert run(["artifact", "sweep", "--store", "nosuch://x"]) == 2
    assert "nosuch" in capfd.readouterr().err
    mistyped = f"{artifacts.folder}x"
    assert run(["artifact", "sweep", "--store", mistyped]) == 2
    assert f"there is no folder {mistyped}" in capfd.readouterr().err
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", "http://127.0.0.1:9")
    assert run(command) == 3


@pytest.mark.parametrize("days", [6, 31])
def test_artifacts_are_kept_for_7_to_30_days(days: int) -> None:
    with pytest.raises(ValidationError, match="retention_artifacts_days"):
        RetentionSettings.model_validate({"retention_artifacts_days": days})
