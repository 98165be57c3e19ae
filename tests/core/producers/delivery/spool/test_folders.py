"""Which dead processes' events a client takes over: by age, and by any spelling of its cluster."""

import logging
import time
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Producer

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.delivery import direct_transport
from sessionary.producers.delivery.spool import orphans
from sessionary.producers.delivery.spool import spool as spool_module
from sessionary.producers.delivery.spool.labels import FolderLabel, label_path, read_label
from sessionary.producers.delivery.spool.orphans import read_expired, revive_expired, summarize_folder
from sessionary.producers.delivery.spool.segment import Frame
from sessionary.producers.delivery.spool.spool import OldEvents, Spool
from sessionary.producers.delivery.spool.transport import SpoolTransport
from sessionary.producers.testing import memory_client
from tests.core.producers.delivery.spool.spools import drain_all
from tests.core.producers.delivery.test_direct_transport import FakeKafka
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.waiting import wait_until

DAY_MS = 86_400_000


def leave_events(folder: Path, name: str, *ages_ms: int) -> None:
    """Leave a dead process with an event of each age, by this machine's clock."""
    own, memory = memory_client()
    own.session(user_id="u")
    value = memory.records()[0].value
    dead = Spool(folder, name, 1 << 20, old="wait")
    for age_ms in ages_ms:
        dead.append_frame(Frame(time.time_ns() // 1_000_000 - age_ms, b"acme:" + name.encode(), None, value), None)
    dead.close()


@pytest.fixture
def _fake_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_transport, "KafkaProducer", FakeKafka)


def kafka_of(made: SessionClient) -> FakeKafka:
    return cast("FakeKafka", cast("SpoolTransport", made.core.ports.transport)._kafka)


def queued(made: SessionClient) -> int:
    return sum(record.key != b"" for record, _ in kafka_of(made).queued[-1])


def look_at_files(made: SessionClient) -> None:
    """Let the poll thread's turn come."""
    transport = cast("SpoolTransport", made.core.ports.transport)
    transport._look_at_files_s = 0.0
    transport._settle_reports()


@pytest.mark.usefixtures("_fake_kafka")
def test_a_clock_ahead_gives_no_event_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = new_settings("kafka:9092", tmp_path)
    leave_events(of.spool_folder, "late", 8 * DAY_MS, DAY_MS)
    leave_events(of.spool_folder, "young", DAY_MS)
    errors: list[Exception] = []
    with new_client(of, errors) as made:
        wait_until(lambda: queued(made) == 1, 60, "the young event")
        look_at_files(made)
        (error,) = errors
        assert "1 dead processes left events" in str(error)
        assert "older than 7 days by the clock of this machine, which may be ahead" in str(error)
        assert (made.counters.replayed, made.counters.expired) == (1, 0)
        assert list(of.spool_folder.glob("*.expired")) == []
        monkeypatch.setattr(spool_module, "_OLD_LOOK_S", 0.0)
        monkeypatch.setattr(spool_module, "AGE_LIMIT_MS", 30 * DAY_MS)  # as if the clock was right again
        kafka_of(made).deliver()
        look_at_files(made)
        look_at_files(made)
        wait_until(lambda: queued(made) == 2, 60, "the events that are no longer too old")
        assert len(errors) == 1


@pytest.mark.usefixtures("_fake_kafka")
def test_old_events_are_given_up_after_a_day_of_the_clients_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = new_settings("kafka:9092", tmp_path)
    leave_events(of.spool_folder, "late", 8 * DAY_MS)
    with new_client(of, []) as made:
        look_at_files(made)
        assert made.counters.expired == 0
        monkeypatch.setattr(spool_module, "OLD_WAIT_S", 0.0)
        look_at_files(made)
        wait_until(lambda: made.counters.expired == 1, 60, "the old event")
    (found,) = summarize_folder(of.spool_folder)
    assert (found.events, found.expired) == (0, 1)


@pytest.mark.usefixtures("_fake_kafka")
def test_an_own_event_that_waits_is_not_given_up_by_a_clock_that_leaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_client(new_settings("kafka:9092", tmp_path), []) as made:
        kafka_of(made).full = True
        session = made.session(user_id="u")
        wait_until(lambda: made.counters.spooled > 0, 60, "the events to wait in the file")
        monkeypatch.setattr(spool_module, "now_ms", lambda: time.time_ns() // 1_000_000 + 20 * DAY_MS)
        kafka_of(made).full = False
        session.activity("x")
        wait_until(lambda: len(kafka_of(made).queued[-1]) >= made.counters.sent, 60, "the waiting events")
        assert made.counters.expired == 0


@pytest.mark.parametrize(("old", "taken"), [("wait", 1), ("send", 2), ("expire", 2)])
def test_a_command_decides_about_old_events(tmp_path: Path, old: OldEvents, taken: int) -> None:
    leave_events(tmp_path, "late", 8 * DAY_MS)
    leave_events(tmp_path, "young", 0)
    own = Spool(tmp_path, "own", 1 << 20, old=old)
    assert (own.taken_over, own.old_left) == (taken, 2 - taken)
    expired = [own.is_expired(place.segment, frame) for place, frame in own.read_frames(9) if frame is not None]
    assert sum(expired) == (1 if old == "expire" else 0)
    own.close()


def test_events_that_were_given_up_can_be_sent_after_all(tmp_path: Path) -> None:
    own = Spool(tmp_path, "own", 1 << 20)
    for n in range(3):
        own.store_aside(Frame(1_000 + n, b"k", "00-trace", b"v" * n))
    assert revive_expired(tmp_path) == 0  # its process is alive
    own.close()
    with (tmp_path / "own.expired").open("ab") as file:
        file.write(b"\xff" * 9)
    ((finding),) = orphans.verify_folder(tmp_path)
    assert (finding.events, finding.lost) == (3, 1)
    assert finding.damage is not None
    assert revive_expired(tmp_path) == 3
    heir = Spool(tmp_path, "heir", 1 << 20)
    assert drain_all(heir) == [Frame(1_000 + n, b"k", "00-trace", b"v" * n) for n in range(3)]
    heir.close()
    assert [path.name for path in tmp_path.iterdir()] == ["own.expired.damaged"]
    assert read_expired(tmp_path / "own.expired") == ([], 0)


def test_one_folder_for_all_spellings_of_the_same_servers(tmp_path: Path) -> None:
    spellings = ("a,b:9093", "b:9093, A:9092", "PLAINTEXT://a:9092,b:9093,a", "plaintext://b:09093,a")
    assert len({new_settings(servers, tmp_path).spool_folder for servers in spellings}) == 1
    others = ("a:9093,b:9093", "a,b", "a", "[::1]:9092,b:9093")
    assert len({new_settings(servers, tmp_path).spool_folder for servers in (*others, spellings[0])}) == 5


def reach_cluster(of: ProducerSettings, cluster_id: str) -> None:
    with new_client(of, []) as made:
        kafka_of(made).cluster_id = cluster_id
        look_at_files(made)


@pytest.mark.usefixtures("_fake_kafka")
def test_dead_processes_that_named_the_same_cluster_otherwise_are_taken_over(tmp_path: Path) -> None:
    alias, other, unknown = (new_settings(servers, tmp_path) for servers in ("alias:9092", "other:9092", "new:9092"))
    prefix = new_settings("alias:9092", tmp_path, topic_prefix="elsewhere")
    reach_cluster(alias, "cluster-1")
    reach_cluster(prefix, "cluster-1")
    reach_cluster(other, "cluster-2")
    for settings in (alias, other, unknown, prefix):
        leave_events(settings.spool_folder, settings.spool_folder.name, 0, 0)
    of = new_settings("kafka:9092", tmp_path)
    with new_client(of, []) as made:
        look_at_files(made)
        assert made.counters.replayed == 0
        kafka_of(made).cluster_id = "cluster-1"
        look_at_files(made)
        wait_until(lambda: queued(made) == 2, 60, "the events of the alias")
        kafka_of(made).deliver()
        look_at_files(made)
        assert (made.counters.replayed, made.counters.delivered) == (2, 2)
    assert list(alias.spool_folder.iterdir()) == []
    assert [len(list(each.spool_folder.glob("*.seg"))) for each in (other, unknown, prefix)] == [1, 1, 1]
    assert read_label(of.spool_folder) == FolderLabel("kafka:9092", "sessionary", "cluster-1")


@pytest.mark.usefixtures("_fake_kafka")
def test_a_label_that_cannot_be_read_or_written_hinders_no_client(tmp_path: Path) -> None:
    of = new_settings("kafka:9092", tmp_path)
    label_path(of.spool_folder).mkdir(parents=True)
    errors: list[Exception] = []
    with new_client(of, errors) as made:
        kafka_of(made).cluster_id = "cluster-1"
        look_at_files(made)
    assert read_label(of.spool_folder) is None
    assert errors == []


def test_a_client_finds_its_cluster_under_another_name_by_the_brokers_answer(tmp_path: Path) -> None:
    """The broker is the mock in librdkafka."""
    mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": ""}, logger=logging.getLogger("mock"))
    (broker,) = mock.list_topics(timeout=60).brokers.values()
    former, of = (new_settings(f"{host}:{broker.port}", tmp_path) for host in ("localhost", "127.0.0.1"))

    def knows_cluster(settings: ProducerSettings) -> bool:
        label = read_label(settings.spool_folder)
        return label is not None and label.cluster_id is not None

    with new_client(former, []) as made:
        made.session(user_id="u")
        wait_until(lambda: knows_cluster(former), 60, "the cluster's id")
        assert made.flush(60) == 0
    leave_events(former.spool_folder, "dead", 0, 0, 0)
    with new_client(of, []) as made:
        sent = made.session(user_id="u").core.emitter.last_seq
        wait_until(lambda: made.counters.delivered == sent + 3, 60, "the events under the other name")
    assert knows_cluster(of)
    assert list(former.spool_folder.iterdir()) == []
    del mock
