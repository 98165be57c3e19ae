"""The lock of a spool: free only after its process has died, on each system."""

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from sessionary.producers import SettingsError
from sessionary.producers.delivery.spool import file_lock
from sessionary.producers.delivery.spool.file_lock import create_locked, try_lock
from tests.core.producers.delivery.spool.spools import frame, leave_dead, new_spool
from tests.style.project import ROOT

# 24 processes start spools at the same instants; the exit code counts what went wrong.
STARTERS = """
import os, sys, time, uuid
from pathlib import Path
if sys.argv[2] == "bare":
    sys.modules["fcntl"] = None
    del os.posix_fallocate
from sessionary.producers.delivery.spool.segment import Frame
from sessionary.producers.delivery.spool.spool import Spool
folder, begin_s = Path(sys.argv[1]), time.time() + 0.5

def start_spools():
    wrong = 0
    for round in range(16):
        time.sleep(max(begin_s + round * 0.05 - time.time(), 0))
        name = str(uuid.uuid4())
        own = Spool(folder, name, 1 << 16)
        wrong += own.taken_over
        place = own.append_frame(Frame(1, b"k", None, b"v"), None)
        time.sleep(0.005)
        wrong += not (folder / f"{name}.lock").exists()
        wrong += len(list(folder.glob(f"{name}.*.seg"))) != 1
        own.mark_sent(place)
        own.mark_done(place)
        own.close()
    return wrong

for _ in range(24):
    if os.fork() == 0:
        os._exit(min(start_spools(), 99))
sys.exit(min(sum(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(24)), 99))
"""


def test_no_starter_steals_a_living_spool(tmp_path: Path) -> None:
    """It may not even see a file between its creation and its lock."""
    modules = "all" if hasattr(os, "posix_fallocate") else "bare"
    argv = [sys.executable, "-c", STARTERS, str(tmp_path / "spool"), modules]
    assert subprocess.run(argv, cwd=ROOT, timeout=300, check=False).returncode == 0
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_lock_that_cannot_be_had_is_a_settings_error(tmp_path: Path) -> None:
    living = new_spool(tmp_path, "one")
    with pytest.raises(SettingsError, match="SESSIONARY_SPOOL_DIR"):
        new_spool(tmp_path, "one")
    living.append_frame(frame(1), None)
    other = new_spool(tmp_path, "other")
    assert other.taken_over == 0
    other.close()
    living.close()


def test_two_heirs_never_have_the_same_orphan(tmp_path: Path) -> None:
    dead = new_spool(tmp_path, "dead")
    dead.append_frame(frame(1), None)
    leave_dead(dead)
    heirs = [new_spool(tmp_path, name) for name in ("a", "b")]
    assert [heir.taken_over for heir in heirs] == [1, 0]
    for heir in heirs:
        heir.close()


def test_segments_without_a_lock_file_are_orphans(tmp_path: Path) -> None:
    dead = new_spool(tmp_path, "dead")
    dead.append_frame(frame(1), None)
    leave_dead(dead)
    (tmp_path / "dead.lock").unlink()
    own = new_spool(tmp_path, "own")
    assert own.taken_over == 1
    own.close()


def test_a_file_is_locked_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, seen = os.link, []

    def watch(source: Path, target: Path) -> None:
        child = os.fork()
        if child == 0:
            file_lock._held.clear()
            os._exit(try_lock(source) is not None)
        seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        link(source, target)

    monkeypatch.setattr(os, "link", watch)
    lock = create_locked(tmp_path / "a.lock")
    assert seen == [0]
    assert try_lock(tmp_path / "a.lock") is None
    lock.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_hard_links_has_locks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    lock = create_locked(tmp_path / "a.lock")
    with pytest.raises(FileExistsError):
        create_locked(tmp_path / "a.lock")
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]
    lock.release()
    again = try_lock(tmp_path / "a.lock")
    assert again is not None
    again.remove()


@pytest.fixture
def windows_lock(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Return the module as Windows has it, with `flock` in the place of `msvcrt`."""

    def locking(fd: int, mode: int, count: int) -> None:
        if not file_lock._lock_file(fd):
            raise PermissionError(13, "Permission denied")

    fake = types.ModuleType("msvcrt")
    vars(fake).update(locking=locking, LK_NBLCK=2)
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    for name in ("O_BINARY", "O_NOINHERIT"):
        monkeypatch.setattr(os, name, 0, raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    spec = importlib.util.spec_from_file_location("windows_lock", file_lock.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_windows_locks_a_byte_of_the_file(tmp_path: Path, windows_lock: types.ModuleType) -> None:
    path = tmp_path / "a.lock"
    lock = windows_lock.create_locked(path)
    assert windows_lock.try_lock(path) is None
    lock.release()
    again = windows_lock.try_lock(path)
    assert again is not None
    again.remove()
    assert windows_lock.try_lock(path) is None
    assert list(tmp_path.iterdir()) == []


def test_on_windows_a_starter_waits_for_one_who_looks(
    tmp_path: Path, windows_lock: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.lock"
    looked: list[float] = []
    first = windows_lock._lock_file
    monkeypatch.setattr(windows_lock, "_lock_file", lambda fd: len(looked) > 2 and first(fd))
    monkeypatch.setattr(windows_lock, "time", SimpleNamespace(sleep=looked.append))  # of this module alone
    lock = windows_lock.create_locked(path)
    assert len(looked) == 3
    lock.remove()
    looked.clear()
    monkeypatch.setattr(windows_lock, "_lock_file", lambda fd: False)
    with pytest.raises(OSError, match="another process has locked it"):
        windows_lock.create_locked(path)
