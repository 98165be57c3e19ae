"""`sessionary spool` on folders of living and dead clients, without a broker."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra import topics
from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.doctor import run_checks
from sessionary.producers import ProducerSettings
from sessionary.producers.delivery import direct_transport
from sessionary.producers.delivery.kafka_producer import DeliveryCallback
from sessionary.producers.delivery.spool.labels import label_folder
from sessionary.producers.delivery.spool.segment import Frame
from sessionary.producers.delivery.spool.spool import Spool
from sessionary.producers.ports import OutRecord
from sessionary.producers.testing import memory_client
from tests.core.producers.delivery.test_direct_transport import FakeKafka, FakeMessage


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
    spool_folder = ProducerSettings.from_env().spool_folder
    fill_spool(spool_folder, "dead", 1).abandon()
    assert run(["spool", "drain"]) == 3
    assert "Kafka" in capfd.readouterr().err


def test_drain_has_nothing_to_do_in_an_empty_folder(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["spool", "drain"]) == 0
    assert answer(capfd)[0] == [{"sent": 0, "expired": 0, "failed": 0, "damaged": 0, "left": 0}]


DAY_MS = 86_400_000


def leave_event(folder: Path, name: str, age_ms: int, cluster_id: str | None = None) -> None:
    """Leave the event of a dead process that can be sent."""
    client, memory = memory_client()
    client.session(user_id="u")
    record = memory.records()[0]
    own = Spool(folder, name, 1 << 20, old="wait")
    if cluster_id is not None:
        own.note_cluster(cluster_id)
    own.append_frame(Frame(time.time_ns() // 1_000_000 - age_ms, record.key, None, record.value), None)
    own.close()


def give_up(folder: Path, name: str) -> None:
    """Leave an event that a dead process has given up."""
    leave_event(folder, f"{name}-before", 8 * DAY_MS)
    own = Spool(folder, name, 1 << 20)
    ((place, frame),) = own.read_frames(2)
    assert frame is not None
    own.mark_sent(place)
    own.store_aside(frame)
    own.mark_done(place)
    own.close()


class DeliveringKafka(FakeKafka):
    """Delivers each record within a moment."""

    def __init__(self, settings: object, on_error: object, on_poll: Callable[[], None], *more: object) -> None:
        super().__init__(settings, on_error, on_poll)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def produce_record(self, record: OutRecord, on_delivery: DeliveryCallback | None) -> None:
        if on_delivery is not None:
            on_delivery(None, FakeMessage(0))  # type: ignore[arg-type]

    def _poll(self) -> None:
        while not self._over.wait(0.01):
            self.on_poll()

    def close(self, timeout_s: float) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ProducerSettings:
    """Stands for a cluster with the id `one`, which delivers everything."""
    monkeypatch.setattr(topics, "find_cluster_id", lambda settings: "one")
    monkeypatch.setattr(direct_transport, "KafkaProducer", DeliveringKafka)
    return ProducerSettings.from_env()


def drained(sent: int, expired: int = 0, left: int = 0) -> list[dict[str, int]]:
    return [{"sent": sent, "expired": expired, "failed": 0, "damaged": 0, "left": left}]


def test_old_and_given_up_events_and_the_servers_are_listed(
    cluster: ProducerSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = cluster.spool_folder
    give_up(folder, "gone")
    leave_event(folder, "late", 8 * DAY_MS)
    leave_event(folder, "young", 0)
    label_folder(folder, "kafka-alias:9092", "sessionary")
    assert run(["spool", "list", "--json"]) == 0
    rows, err = answer(capfd)
    found = [(row["producer_id"], row["events"], row["old"], row["expired"], row["servers"]) for row in rows]
    servers = "kafka-alias:9092"
    assert found == [("gone", 0, 0, 1, servers), ("late", 1, 1, 0, servers), ("young", 1, 0, 0, servers)]
    assert "dead processes left 1 events: " in err
    assert "dead processes left 1 events that are older than 7 days by this clock: check the clock" in err
    assert "1 events were given up: sessionary spool drain --old send" in err


def test_drain_leaves_old_events_unless_it_has_a_word_for_them(
    cluster: ProducerSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = cluster.spool_folder
    give_up(folder, "gone")
    leave_event(folder, "late", 8 * DAY_MS)
    leave_event(folder, "young", 0)
    assert run(["spool", "drain", "--json"]) == 1
    assert answer(capfd)[0] == drained(sent=1, left=1)
    assert run(["spool", "drain", "--old", "expire", "--json"]) == 0
    assert answer(capfd)[0] == drained(sent=0, expired=1)
    assert run(["spool", "drain", "--old", "send", "--json"]) == 0
    assert answer(capfd)[0] == drained(sent=2)
    assert list(folder.iterdir()) == []


def test_drain_finds_folders_of_the_same_cluster_and_names_the_others(
    cluster: ProducerSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    root = cluster.spool_folder.parent
    for name, cluster_id in (("alias", "one"), ("other", "two"), ("unknown", None)):
        leave_event(root / name, f"dead-{name}", 0, cluster_id)
        label_folder(root / name, f"{name}:9092", "sessionary")
    leave_event(root / "prefix", "dead-prefix", 0)
    label_folder(root / "prefix", "kafka:9092", "elsewhere")
    assert run(["spool", "drain", "--json"]) == 0
    rows, err = answer(capfd)
    assert rows == drained(sent=1)
    assert "3 events of dead processes are in folders for other servers" in err
    assert run(["spool", "drain", "--folder", "unknown", "--json"]) == 0
    rows, err = answer(capfd)
    assert rows == drained(sent=1)
    assert "2 events of dead processes" in err
    assert run(["spool", "drain", "--folder", "absent"]) == 2
    assert "there is no folder" in capfd.readouterr().err
    assert run(["spool", "drain", "--folder", "other"]) == 2
    assert "has events for the cluster two, and SESSIONARY_BOOTSTRAP_SERVERS leads to one" in capfd.readouterr().err
    assert run(["spool", "drain", "--folder", "prefix"]) == 2
    assert "is for the topic prefix elsewhere, not sessionary" in capfd.readouterr().err
    assert [len(list((root / name).glob("*.seg"))) for name in ("other", "prefix")] == [1, 1]


def spool_check() -> tuple[bool, str, str] | None:
    found = (check for check in run_checks(dict(os.environ)) if check.check == "spools")
    return next(((check.ok, check.found, check.advice) for check in found), None)


def test_doctor_finds_what_dead_processes_left_for_this_cluster(folder: Path) -> None:
    assert spool_check() is None
    settings = ProducerSettings.from_env()
    living = fill_spool(settings.spool_folder, "living", 3)
    living.note_cluster("one")
    leave_event(folder.parent / "other", "other", 0, "two")
    label_folder(folder.parent / "other", "other:9092", "sessionary")
    found = f"{folder.parent}: 1 living clients with 3 events, 1 spools for other clusters"
    assert spool_check() == (True, found, "")
    give_up(folder.parent / "alias", "gone")
    leave_event(folder.parent / "alias", "alias", 0)
    check = spool_check()
    assert check is not None
    assert check[:2] == (False, f"dead processes left 1 events; 1 events were given up; {found}")
    assert "sessionary spool drain" in check[2]
    living.close()
