"""`sessionary spool` on folders of living and dead clients, without a broker."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from sessionary.producers.delivery.spool.segment import Frame
from sessionary.producers.delivery.spool.spool import Spool


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SESSIONARY_SPOOL_DIR", str(tmp_path / "spool"))
    return tmp_path / "spool" / "cluster"


def fill_spool(folder: Path, name: str, events: int) -> Spool:
    own = Spool(folder, name, 1 << 20)
    for _ in range(events):
        own.append_frame(Frame(1_000, b"k", None, b"v" * 100), None)
    return own


def damage_file(folder: Path, name: str) -> None:
    with (folder / f"{name}.00000001.seg").open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 8)


def answer(capfd: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    out, err = capfd.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def test_living_and_dead_spools_are_listed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dead = fill_spool(folder, "dead", 5)
    living = Spool(folder, "living", 1 << 20)
    assert living.taken_over == 0
    dead.abandon()
    damage_file(folder, "dead")
    assert run(["spool", "list", "--json"]) == 0
    rows, err = answer(capfd)
    assert [(row["producer_id"], row["process"], row["events"], row["damaged"]) for row in rows] == [
        ("dead", "dead", 4, 1),
        ("living", "alive", 0, 0),
    ]
    assert rows[0]["oldest_age_s"] > 1e9
    assert rows[0]["bytes"] > 500
    assert rows[0]["folder"] == str(folder)
    assert "sessionary spool drain" in err
    living.close()


def test_nothing_is_listed_where_no_client_ran(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["spool", "list", "--json"]) == 0
    assert run(["spool", "verify", "--json"]) == 0
    assert answer(capfd) == ([], "")


def test_verify_is_content_with_intact_files(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    living = fill_spool(folder, "living", 5)
    assert run(["spool", "verify", "--json"]) == 0
    rows, err = answer(capfd)
    assert [(row["process"], row["events"], row["lost"], row["damage"]) for row in rows] == [("alive", 5, 0, None)]
    assert err == ""
    living.close()


def test_verify_fails_and_says_what_is_damaged(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fill_spool(folder, "dead", 5).abandon()
    damage_file(folder, "dead")
    fill_spool(folder.parent / "other", "fine", 5).close()
    assert run(["spool", "verify", "--dir", str(folder.parent), "--json"]) == 1
    rows, err = answer(capfd)
    assert [(row["events"], row["lost"]) for row in rows] == [(4, 1), (5, 0)]
    assert rows[0]["file"].endswith("dead.00000001.seg")
    assert "from byte" in rows[0]["damage"]
    assert "1 of 2 files are damaged, 1 events cannot be read" in err


def test_verify_shows_what_was_set_aside(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fill_spool(folder, "dead", 1).abandon()
    os.truncate(folder / "dead.00000001.seg", 10)
    own = Spool(folder, "own", 1 << 20)
    own.close()
    assert run(["spool", "verify"]) == 1
    rows, _ = answer(capfd)
    assert [Path(row["file"]).name for row in rows] == ["dead.00000001.seg.damaged"]
    assert run(["spool", "list"]) == 0
    rows, _ = answer(capfd)
    assert [(row["producer_id"], row["set_aside"]) for row in rows] == [("dead", 1)]


def test_drain_says_that_no_broker_answers(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from sessionary.producers import ProducerSettings

    spool_folder = ProducerSettings.from_env().spool_folder
    fill_spool(spool_folder, "dead", 1).abandon()
    assert run(["spool", "drain"]) == 3
    assert "Kafka" in capfd.readouterr().err


def test_drain_has_nothing_to_do_in_an_empty_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["spool", "drain"]) == 0
    assert answer(capfd)[0] == [{"sent": 0, "expired": 0, "failed": 0, "damaged": 0, "left": 0}]
