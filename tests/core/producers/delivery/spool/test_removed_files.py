"""Others remove files of a spool while its client lives: its events are written anew."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from sessionary.producers import ClientClosed, ProducerSettings, SessionClient, SpoolRemoved
from sessionary.producers.delivery.spool import spool as spool_module
from sessionary.producers.delivery.spool.file_lock import FileLock, read_note
from sessionary.producers.delivery.spool.orphans import summarize_folder
from sessionary.producers.delivery.spool.segment import Segment
from sessionary.producers.delivery.spool.spool import Spool
from sessionary.producers.delivery.spool.transport import SpoolTransport
from tests.core.producers.delivery.spool.spools import drain_all, frame, leave_dead, new_spool, number_of, segment_files
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.waiting import wait_until

EVENTS = 30


def removed_of(errors: list[Exception]) -> list[SpoolRemoved]:
    return [error for error in errors if isinstance(error, SpoolRemoved)]


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder.parent)


def remove_files(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def remove_segments(folder: Path) -> None:
    for path in segment_files(folder):
        path.unlink()


def remove_lock(folder: Path) -> None:
    (path,) = folder.glob("*.lock")
    path.unlink()


def work_then_lose(
    settings: ProducerSettings, made: SessionClient, errors: list[Exception], lose: Callable[[Path], None]
) -> int:
    """Send events, lose files, send more; return the number of events once the loss was found."""
    session = made.session(user_id="u")
    for _ in range(EVENTS):
        session.activity("x", "y" * 1_000)
    lose(settings.spool_folder)
    for _ in range(EVENTS):
        session.activity("x", "y" * 1_000)
    wait_until(lambda: bool(removed_of(errors)), 60, "the client to find out")
    session.activity("x", "the last one")
    return made.counters.sent


@pytest.mark.parametrize("lose", [remove_folder, remove_files, remove_segments, remove_lock])
def test_the_events_of_removed_files_are_written_anew(
    closed_address: str, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    errors: list[Exception] = []
    of = new_settings(closed_address, tmp_path / "all")
    with new_client(of, errors) as made:
        sent = work_then_lose(of, made, errors, lose)
        (found,) = summarize_folder(of.spool_folder)
        assert (found.alive, found.events) == (True, sent)
    (error,) = removed_of(errors)
    assert error.at_risk == 0
    assert error.kept == (0 if lose is remove_lock else sent - 1)
    assert f"the folder {of.spool_folder} used were removed or replaced: {error.kept} events" in str(error)
    assert made.counters.errors["spool_removed"] == 1
    assert f": {sent} are in the spool, and the next client" in str(errors[-1])
    left = Spool(of.spool_folder, "later", 1 << 20)
    assert left.taken_over == sent
    assert made.counters.failed == 0
    left.close()


def test_events_without_any_file_are_counted_as_lost_at_the_end(closed_address: str, tmp_path: Path) -> None:
    errors: list[Exception] = []
    of = new_settings(closed_address, tmp_path / "all")

    def lose(folder: Path) -> None:
        shutil.rmtree(folder.parent)
        folder.parent.write_text("no folder can be made here")

    with new_client(of, errors) as made:
        sent = work_then_lose(of, made, errors, lose)
        assert made.counters.errors["not_on_disk"] >= 1
    (error,) = removed_of(errors)
    assert (error.kept, error.at_risk) == (0, sent - 1)
    assert f"{sent - 1} are in memory only, and lost with the process, as no file can be made: " in str(error)
    assert made.counters.failed == sent
    (closed,) = [error for error in errors if isinstance(error, ClientClosed)]
    assert str(closed) == (
        f"{sent} events were not acknowledged before the client closed: {sent} are lost. 0 were acknowledged"
    )


def test_a_folder_that_comes_back_gets_the_events(closed_address: str, tmp_path: Path) -> None:
    errors: list[Exception] = []
    of = new_settings(closed_address, tmp_path / "all")

    def lose(folder: Path) -> None:
        shutil.rmtree(folder.parent)
        folder.parent.write_text("no folder can be made here")

    with new_client(of, errors) as made:
        sent = work_then_lose(of, made, errors, lose)
        (tmp_path / "all").unlink()
        wait_until(lambda: bool(segment_files(of.spool_folder)), 60, "the new file")
    left = Spool(of.spool_folder, "later", 1 << 20)
    assert left.taken_over == sent
    assert (len(removed_of(errors)), made.counters.failed) == (1, 0)
    left.close()


def test_a_process_that_took_the_files_over_meanwhile_is_left_alone(tmp_path: Path) -> None:
    own = new_spool(tmp_path)
    for n in range(3):
        own.append_frame(frame(n), None)
    remove_lock(tmp_path)
    heir = new_spool(tmp_path, "heir")
    assert heir.taken_over == 3
    own.restore_locks()
    for segment in own.watched_files().segments:
        assert own.restore_segment(segment) == 3
    own.append_frame(frame(3), None)
    drain_all(heir)
    heir.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one-1.00000001.seg", "one-1.lock"]
    leave_dead(own)
    last = new_spool(tmp_path, "last")
    assert [number_of(one) for one in drain_all(last)] == [0, 1, 2, 3]
    last.close()
    assert list(tmp_path.iterdir()) == []


def test_restored_locks_keep_the_order_of_takeover(tmp_path: Path) -> None:
    """Of a session's events, those of the process that died first are sent first."""
    for n, name in enumerate(("z-first", "y-second")):
        dead = new_spool(tmp_path, name)
        dead._lock.created_ns = n
        dead.note_cluster("cluster-1")
        dead.append_frame(frame(n), None)
        leave_dead(dead)
    own = new_spool(tmp_path, "x-own")
    own.append_frame(frame(2), None)
    created_ns = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.lock")}
    assert created_ns["z-first.lock"] == 0
    remove_files(tmp_path)
    own.restore_locks()
    for segment in own.watched_files().segments:
        own.restore_segment(segment)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.lock")} == created_ns
    assert read_note(tmp_path / "z-first.lock") == "cluster-1"
    leave_dead(own)
    last = new_spool(tmp_path, "last")
    assert [number_of(one) for one in drain_all(last)] == [0, 1, 2]
    last.close()


def test_the_files_of_a_dead_process_are_left_to_another_heir(tmp_path: Path) -> None:
    dead = new_spool(tmp_path, "dead")
    dead.append_frame(frame(1), None)
    leave_dead(dead)
    own = new_spool(tmp_path)
    (tmp_path / "dead.lock").unlink()
    heir = new_spool(tmp_path, "heir")
    assert heir.taken_over == 1
    (tmp_path / "dead.00000001.seg").unlink()
    assert own.watched_files().find_lost()
    own.restore_locks()
    assert [own.restore_segment(segment) for segment in own.watched_files().segments] == [0, 0]
    assert not own.watched_files().find_lost()
    heir.restore_locks()
    assert sum(heir.restore_segment(segment) for segment in heir.watched_files().segments) == 1
    assert [number_of(one) for one in drain_all(own)] == [1]
    assert own.close() == []
    leave_dead(heir)
    last = new_spool(tmp_path, "last")
    assert [number_of(one) for one in drain_all(last)] == [1]
    last.close()
    assert list(tmp_path.iterdir()) == []


def test_a_closed_spool_restores_nothing(tmp_path: Path) -> None:
    own = new_spool(tmp_path)
    watched = own.watched_files()
    own.close()
    own.restore_locks()
    assert not own.watched_files().find_lost()
    assert [own.restore_segment(segment) for segment in watched.segments] == [0]
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_cannot_be_taken_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = new_spool(tmp_path)
    own.append_frame(frame(1), None)
    remove_lock(tmp_path)
    heir = new_spool(tmp_path, "heir")

    def refuse(path: Path, like: FileLock | None = None) -> FileLock:
        raise FileExistsError if path.name == "one.lock" else OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(spool_module, "create_locked", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is full"):
                own.restore_locks()
    own.restore_locks()
    assert sum(own.restore_segment(segment) for segment in own.watched_files().segments) == 1
    assert sorted(path.name for path in tmp_path.glob("one*")) == [
        "one-1.00000001.seg",
        "one-1.lock",
        "one.00000001.seg",
        "one.lock",
    ]
    heir.close()
    own.close()


def test_the_events_of_a_dead_process_outlive_the_removal_of_their_files(tmp_path: Path) -> None:
    dead = new_spool(tmp_path, "dead")
    dead.append_frame(frame(1), None)
    leave_dead(dead)
    own = new_spool(tmp_path)
    remove_files(tmp_path)
    own.restore_locks()
    assert sum(own.restore_segment(segment) for segment in own.watched_files().segments) == 1
    assert [(one.producer_id, one.alive, one.events) for one in summarize_folder(tmp_path)] == [
        ("dead", True, 1),
        ("one", True, 0),
    ]
    assert [number_of(one) for one in drain_all(own)] == [1]
    own.close()
    assert list(tmp_path.iterdir()) == []


def unreadable(monkeypatch: pytest.MonkeyPatch, folder: Path, error: int) -> None:
    """Let each look at a folder, and each change of it, fail."""

    def refuse(call: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *more: Any, **named: Any) -> Any:
            if not isinstance(path, int) and str(path).startswith(str(folder)):
                raise OSError(error, os.strerror(error), str(path))
            return call(path, *more, **named)

        return look

    for name in ("stat", "lstat", "open", "scandir", "listdir", "unlink", "mkdir", "rename", "replace", "link"):
        monkeypatch.setattr(os, name, refuse(getattr(os, name)))


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_volume_that_cannot_be_read_for_a_while_changes_nothing(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    errors: list[Exception] = []
    of = new_settings(closed_address, tmp_path)
    with new_client(of, errors) as made:
        session = made.session(user_id="u")
        transport = cast("SpoolTransport", made.core.ports.transport)
        known = sorted(of.spool_folder.iterdir())
        with monkeypatch.context() as patched:
            unreadable(patched, of.spool_folder, error)
            for _ in range(3):
                session.activity("x")
                transport._restore_files()
        assert sorted(of.spool_folder.iterdir()) == known
        sent = made.counters.sent
    assert (removed_of(errors), [error for error in errors if isinstance(error, OSError)]) == ([], [])
    left = Spool(of.spool_folder, "later", 1 << 20)
    assert left.taken_over == sent
    left.close()


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_volume_that_cannot_be_read_hinders_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    own = new_spool(tmp_path / "folder")
    own.append_frame(frame(1), None)
    with monkeypatch.context() as patched:
        unreadable(patched, tmp_path / "folder", error)
        assert own.close() == []
    left = new_spool(tmp_path / "folder", "later")
    assert left.taken_over == 1
    left.close()


def test_files_that_were_replaced_count_as_removed(tmp_path: Path) -> None:
    own = new_spool(tmp_path)
    own.append_frame(frame(1), None)
    for path in [*tmp_path.iterdir()]:
        copy = path.with_name("copy")
        shutil.copy2(path, copy)
        copy.replace(path)
    own.append_frame(frame(2), None)
    assert own.watched_files().count_removed() == 2
    own.restore_locks()
    assert [own.restore_segment(segment) for segment in own.watched_files().segments] == [2]
    assert not own.watched_files().find_lost()
    leave_dead(own)
    last = new_spool(tmp_path, "last")
    assert {number_of(one) for one in drain_all(last)} == {1, 2}
    last.close()


def test_a_segment_in_memory_gets_a_file_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, capacity: int) -> Segment:
        raise OSError(f"no room for {capacity} bytes")

    own = Spool(tmp_path, "one", 1 << 20, memory_bytes_max=1 << 20)
    with monkeypatch.context() as patched:
        patched.setattr(spool_module, "create_segment", refuse)
        n = 0
        while own.disk_error is None:
            own.append_frame(frame(n, 1 << 10), None)
            n += 1
    tail = own.watched_files().segments[-1]
    assert (tail.needs_file, tail.has_lost_file, own.watched_files().count_removed()) == (True, False, 0)
    assert own.restore_segment(tail) == 1
    assert own.disk_error is None
    leave_dead(own)
    last = new_spool(tmp_path, "last")
    assert last.taken_over == n
    last.close()


def test_a_folder_that_is_no_longer_accessible_counts_as_removed(tmp_path: Path) -> None:
    folder = tmp_path / "all" / "folder"
    own = new_spool(folder)
    own.append_frame(frame(1), None)
    folder.parent.rename(tmp_path / "elsewhere")
    folder.parent.write_text("a file")  # so that a look below it is an error, not an absence
    watched = own.watched_files()
    assert (watched.find_lost(), watched.count_removed()) == (True, 2)
    with pytest.raises(OSError, match="all"):
        own.restore_locks()
    assert own.keep_in_memory(OSError("no folder")) == 1
    assert str(own.disk_error) == "no folder"
    assert len(own.close()) == 1
    assert segment_files(tmp_path / "elsewhere" / "folder")


_VICTIM = """
import shutil, sys, threading
from pathlib import Path
from sessionary.producers import ProducerSettings, SessionClient, SpoolRemoved

found = threading.Event()

def on_error(error):
    if isinstance(error, SpoolRemoved):
        found.set()

given = {"bootstrap_servers": sys.argv[1], "spool_dir": Path(sys.argv[2])}
settings = ProducerSettings.from_env({}, **given)
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, on_error=on_error)
session = client.session(user_id="u")
session.activity("before")
shutil.rmtree(sys.argv[2])
session.activity("after")
assert found.wait(60)
session.activity("last")
print(client.counters.sent, flush=True)
threading.Event().wait(60)
"""


def test_a_process_that_is_killed_leaves_what_it_wrote_anew(closed_address: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _VICTIM, closed_address, str(tmp_path / "all")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        sent = int(victim.stdout.readline())
        victim.kill()
    left = Spool(new_settings(closed_address, tmp_path / "all").spool_folder, "later", 1 << 20)
    assert left.taken_over == sent == 7
    left.close()
