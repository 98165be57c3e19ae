"""Which dead processes' events a client takes over: by age, and by any spelling of its cluster."""

import logging
import os
import time
from pathlib import Path
from typing import cast
from unittest.mock import ANY

import pytest
from confluent_kafka import Producer

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.delivery import direct_transport
from sessionary.producers.delivery.spool import orphans
from sessionary.producers.delivery.spool import spool as spool_module
from sessionary.producers.delivery.spool.file_lock import read_note
from sessionary.producers.delivery.spool.labels import FolderLabel, label_path, read_label
from sessionary.producers.delivery.spool.orphans import read_expired, revive_expired, summarize_folder
from sessionary.producers.delivery.spool.segment import Frame, Segment, create_segment
from sessionary.producers.delivery.spool.spool import OldEvents, Spool
from sessionary.producers.delivery.spool.transport import SpoolTransport
from sessionary.producers.process.clocks import awake_and_asleep_s
from sessionary.producers.testing import memory_client
from tests.core.producers.delivery.spool.spools import drain_all
from tests.core.producers.delivery.test_direct_transport import FakeKafka
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.waiting import wait_until

DAY_MS = 86_400_000


def leave_events(folder: Path, name: str, *ages_ms: int, cluster_id: str | None = None) -> None:
    """Leave a dead process with an event of each age, by this machine's clock.

    `cluster_id`: of the cluster that it has reached.
    """
    dead = Spool(folder, name, 1 << 20, old="wait")
    if cluster_id is not None:
        dead.note_cluster(cluster_id)
    for age_ms in ages_ms:
        append_event(dead, b"acme:" + name.encode(), age_ms)
    dead.close()


def append_event(own: Spool, key: bytes, age_ms: int = 0) -> None:
    client, memory = memory_client()
    client.session(user_id="u")
    own.append_frame(Frame(time.time_ns() // 1_000_000 - age_ms, key, None, memory.records()[0].value), None)


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
    leave_events(of.spool_folder, "late", 9 * DAY_MS, 8 * DAY_MS)
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
def test_a_client_that_runs_takes_over_a_process_that_dies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As among the workers of a server: the others live on, and none may start."""
    of = new_settings("kafka:9092", tmp_path)
    with new_client(of, []) as made:
        beside = Spool(of.spool_folder, "beside", 1 << 20)
        append_event(beside, b"acme:beside")
        monkeypatch.setattr(spool_module, "_LOOK_S", 0.0)
        look_at_files(made)
        assert (queued(made), made.counters.replayed) == (0, 0), "it lives"
        beside.abandon()
        look_at_files(made)
        wait_until(lambda: queued(made) == 1, 60, "the dead process's event")
        assert made.counters.replayed == 1


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


def test_old_events_hold_back_no_young_ones_of_their_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_events(tmp_path, "dead", 9 * DAY_MS, 8 * DAY_MS, DAY_MS, 0, cluster_id="cluster-1")
    os.utime(tmp_path / "dead.lock", ns=(1_000, 1_000))
    own = Spool(tmp_path, "own", 1 << 20, old="wait")
    assert (own.taken_over, own.old_left) == (2, 1)
    drain_all(own)
    own.close()
    (left,) = summarize_folder(tmp_path)
    assert (left.producer_id, left.events, left.cluster_id) == ("dead-old", 2, "cluster-1")
    assert (tmp_path / "dead-old.lock").stat().st_mtime_ns == 1_000
    later = Spool(tmp_path, "later", 1 << 20, old="wait")
    assert (later.taken_over, later.old_left) == (0, 1)
    later.close()
    monkeypatch.setattr(spool_module, "AGE_LIMIT_MS", 30 * DAY_MS)  # as if the clock was right again
    last = Spool(tmp_path, "last", 1 << 20, old="wait")
    assert [frame.written_ms // DAY_MS for frame in drain_all(last)] == [
        (time.time_ns() // 1_000_000 - days * DAY_MS) // DAY_MS for days in (9, 8)
    ]
    last.close()
    assert list(tmp_path.iterdir()) == []


def test_the_longest_dead_is_first_whichever_folder_it_is_in(tmp_path: Path) -> None:
    for n, (folder, name) in enumerate((("b", "z"), ("a", "y"), ("b", "x"), ("a", "w"))):
        leave_events(tmp_path / folder, name, n * DAY_MS)
        os.utime(tmp_path / folder / f"{name}.lock", ns=(n, n))
    own = Spool(tmp_path / "own", "own", 1 << 20)
    own.add_folders({tmp_path / name: frozenset({None}) for name in ("a", "b")})
    assert own.may_take_over
    own.take_over(own.claim_orphans())
    assert [frame.key for frame in drain_all(own)] == [b"acme:z", b"acme:y", b"acme:x", b"acme:w"]
    assert not own.may_take_over
    own.close()


def test_a_folder_that_is_added_while_orphans_are_claimed_is_not_forgotten(tmp_path: Path) -> None:
    leave_events(tmp_path / "alias", "dead", 0)
    own = Spool(tmp_path / "own", "own", 1 << 20)
    claim = own.claim_orphans()
    own.add_folders({tmp_path / "alias": frozenset({None})})
    own.take_over(claim)
    assert own.may_take_over
    claim = own.claim_orphans()
    own.add_folders({tmp_path / "alias": frozenset({"cluster-1"})})
    assert own.take_over(claim) == 1
    drain_all(own)
    assert own.may_take_over
    own.take_over(own.claim_orphans())
    assert not own.may_take_over
    own.close()


def test_a_clients_life_counts_while_its_machine_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_events(tmp_path, "dead", 8 * DAY_MS)
    own = Spool(tmp_path, "own", 1 << 20, old="wait")
    assert (own.taken_over, own.old_left) == (0, 1)
    woken_s = awake_and_asleep_s() + 2 * DAY_MS / 1_000
    monkeypatch.setattr(spool_module, "awake_and_asleep_s", lambda: woken_s)
    assert own.look_again()
    assert own.take_over(own.claim_orphans()) == 1
    ((place, frame),) = own.read_frames(2)
    assert frame is not None
    assert own.is_expired(place.segment, frame)
    own.close()


def test_old_events_that_cannot_be_moved_leave_the_spool_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_events(tmp_path, "dead", 9 * DAY_MS, 0)

    def refuse(path: Path, capacity: int, content: bytes) -> Segment:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(orphans, "create_segment", refuse)
        own = Spool(tmp_path, "own", 1 << 20, old="wait")
        assert (own.taken_over, own.old_left) == (0, 1)
        own.close()
    (left,) = [one for one in summarize_folder(tmp_path) if one.events]
    assert (left.producer_id, left.events) == ("dead", 2)
    later = Spool(tmp_path, "later", 1 << 20, old="wait")
    assert (later.taken_over, later.old_left) == (1, 1)
    later.close()


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


def test_a_rival_beside_a_revival_loses_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Spool(tmp_path, "own", 1 << 20)
    for n in range(3):
        own.store_aside(Frame(1_000 + n, b"k", None, b"v" * n))
    own.close()

    def create(path: Path, capacity: int, content: bytes = b"") -> Segment:
        made = create_segment(path, capacity, content)
        rival = Spool(tmp_path, "rival", 1 << 20)
        assert rival.taken_over == 0
        rival.close()
        return made

    monkeypatch.setattr(orphans, "create_segment", create)
    assert revive_expired(tmp_path) == 3
    heir = Spool(tmp_path, "heir", 1 << 20)
    assert len(drain_all(heir)) == 3
    heir.close()


def test_one_folder_for_all_spellings_of_the_same_servers(tmp_path: Path) -> None:
    spellings = ("a,b:9093", "b:9093, A:9092", "PLAINTEXT://a:9092,b:9093,a", "plaintext://b:09093,a")
    assert len({new_settings(servers, tmp_path).spool_folder for servers in spellings}) == 1
    others = ("a:9093,b:9093", "a,b", "a", "[::1]:9092,b:9093")
    assert len({new_settings(servers, tmp_path).spool_folder for servers in (*others, spellings[0])}) == 5


def reach_cluster(of: ProducerSettings, cluster_id: str | None) -> None:
    with new_client(of, []) as made:
        kafka_of(made).cluster_id = cluster_id
        look_at_files(made)


@pytest.mark.usefixtures("_fake_kafka")
def test_dead_processes_that_named_the_same_cluster_otherwise_are_taken_over(tmp_path: Path) -> None:
    alias, other, unknown = (new_settings(servers, tmp_path) for servers in ("alias:9092", "other:9092", "new:9092"))
    prefix = new_settings("alias:9092", tmp_path, topic_prefix="elsewhere")
    every = ((alias, "cluster-1"), (other, "cluster-2"), (unknown, None), (prefix, "cluster-1"))
    for settings, cluster_id in every:
        reach_cluster(settings, cluster_id)
        leave_events(settings.spool_folder, settings.spool_folder.name, 0, 0, cluster_id=cluster_id)
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
    assert read_label(of.spool_folder) == FolderLabel("kafka:9092", "sessionary")


@pytest.mark.usefixtures("_fake_kafka")
def test_events_go_to_no_cluster_that_only_others_of_their_folder_have_reached(tmp_path: Path) -> None:
    forward, of = new_settings("localhost:9092", tmp_path), new_settings("staging-kafka:9092", tmp_path)
    reach_cluster(forward, "staging")
    reach_cluster(of, "staging")
    with new_client(forward, []) as killed:  # the forward leads to production now, which is down
        kafka_of(killed).full = True
        killed.session(user_id="u")
        wait_until(lambda: killed.counters.spooled > 0, 60, "the events to wait in the file")
    (left,) = summarize_folder(forward.spool_folder)
    assert (left.events > 0, left.cluster_id) == (True, None)
    with new_client(of, []) as made:
        kafka_of(made).cluster_id = "staging"
        look_at_files(made)
        transport = cast("SpoolTransport", made.core.ports.transport)
        wait_until(lambda: not transport.may_take_over, 60, "the look at the other folders")
        assert made.counters.replayed == 0
    assert summarize_folder(forward.spool_folder) == [left._replace(oldest_age_s=ANY)]
    with new_client(forward, []) as heir:
        assert heir.counters.replayed == left.events


def test_the_note_of_a_cluster_keeps_the_order_of_locks_and_ends_with_a_second_cluster(tmp_path: Path) -> None:
    lock = tmp_path / "own.lock"
    own = Spool(tmp_path, "own", 1 << 20)
    own._lock.created_ns = 1_000
    own.note_cluster("a-long-id")
    own.note_cluster("a-long-id")
    assert (read_note(lock), lock.stat().st_mtime_ns) == ("a-long-id", 1_000)
    own.note_cluster("b")
    assert read_note(lock) is None
    own.note_cluster("b")
    assert (read_note(lock), lock.stat().st_mtime_ns) == (None, 1_000)
    own.close()


def test_a_lost_lock_gets_the_note_that_it_could_not_take(tmp_path: Path) -> None:
    own = Spool(tmp_path, "own", 1 << 20)
    (tmp_path / "own.lock").unlink()
    own._lock.release()
    own.note_cluster("a")
    own.restore_locks()
    assert read_note(tmp_path / "own.lock") == "a"
    own.close()


def test_a_note_that_was_written_in_part_counts_as_none(tmp_path: Path) -> None:
    lock = tmp_path / "own.lock"
    assert read_note(lock) is None
    lock.write_bytes(b"half an i")
    assert read_note(lock) is None
    lock.write_bytes(b"an id\n")
    assert read_note(lock) == "an id"


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

    def cluster_of(settings: ProducerSettings) -> str | None:
        (living,) = (one for one in summarize_folder(settings.spool_folder) if one.alive)
        return living.cluster_id

    with new_client(former, []) as made:
        made.session(user_id="u")
        wait_until(lambda: cluster_of(former) is not None, 60, "the cluster's id")
        cluster_id = cluster_of(former)
        assert made.flush(60) == 0
    leave_events(former.spool_folder, "dead", 0, 0, 0, cluster_id=cluster_id)
    with new_client(of, []) as made:
        sent = made.session(user_id="u").core.emitter.last_seq
        wait_until(lambda: made.counters.delivered == sent + 3, 60, "the events under the other name")
        assert cluster_of(of) == cluster_id
    assert list(former.spool_folder.iterdir()) == []
    del mock
