"""Spools of one folder under every kind of harm, in any order, against a simple model.

Processes start, append, send, get acknowledgements, close, and are killed: also between any two
writes, removals and renamings of files, and within a write. Bits flip, pages become zeros, files
are cut, the disk fills up. Then a last process drains the folder, and each event that was accepted
and not acknowledged must have been sent, or its file must have been reported with at least as many
lost events.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from sessionary.producers import SettingsError
from sessionary.producers.delivery.spool import file_lock, orphans, segment, spool
from sessionary.producers.delivery.spool.file_lock import _lock_file
from sessionary.producers.delivery.spool.segment import Frame, FramePosition, encode_frame
from sessionary.producers.delivery.spool.spool import Spool
from sessionary.producers.errors import SpoolDamaged

_BYTES_MAX = 1 << 16  # segments of 8 KiB
_PAGE = 4_096
_WRITES = ("write_next", "write_head", "allocate_blocks", "set_aside")
_KEYS = (b"t:one", b"t:two")


class _Killed(BaseException):
    """The process is killed here."""


class _Process:
    """A living process: its spool, what it has sent, and the order in which it read."""

    def __init__(self, name: str, own: Spool) -> None:
        self.name = name
        self.spool = own
        self.sent: list[tuple[FramePosition, int]] = []
        self.last_read: dict[str, int] = {}  # by owner, since the last rewinding


class SpoolMachine(RuleBasedStateMachine):
    """The rules. `owner` and `file` are those of each accepted event, by its number."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sessionary-spool-"))
        self.started = 0
        self.events = 0
        self.owner: dict[int, str] = {}
        self.file: dict[int, str] = {}
        self.open: set[int] = set()  # accepted, and neither acknowledged nor known to be lost
        self.lost: Counter[str] = Counter()  # reported, by file
        self.head_lost: set[str] = set()  # files whose head is lost: theirs is a lower bound
        self.living: dict[str, _Process] = {}
        self.disk_full = False
        self.writes_left: int | None = None  # until the process is killed
        self.torn = False
        self.patches = [mock.patch.object(segment, name, self._watched(getattr(segment, name))) for name in _WRITES]
        self.patches.append(mock.patch.object(spool, "encode_frame", self._watched(encode_frame)))
        for name in ("unlink", "rename"):
            self.patches.append(mock.patch.object(Path, name, self._watched(getattr(Path, name))))
        self.descriptors: list[tuple[int, int]] = []  # locked by the process that is to be killed, with inodes
        self.patches.append(mock.patch.object(file_lock, "_lock_file", self._lock_noted))
        # What a process left that was killed at its start is of no other one here.
        self.patches.append(mock.patch.multiple(orphans, _LEFT_S=-1.0))
        for patch in self.patches:
            patch.start()

    def _lock_noted(self, fd: int) -> bool:
        if not _lock_file(fd):
            return False
        if self.writes_left is not None:
            self.descriptors.append((fd, os.fstat(fd).st_ino))
        return True

    def _free_locks(self) -> None:
        """Free what the killed process has locked, as the kernel does."""
        living = [process.spool for process in self.living.values()]
        held = {lock.path: lock._fd for own in living for lock in (own._lock, *own._orphan_locks)}
        for fd, inode in self.descriptors:
            with suppress(OSError):  # it is closed already
                if os.fstat(fd).st_ino == inode and fd not in held.values():
                    os.close(fd)
        self.descriptors.clear()
        for path in [one for one in file_lock._held if one.parent == self.folder and one not in held]:
            del file_lock._held[path]

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            self._drain_everything()
        finally:
            for patch in self.patches:
                patch.stop()
            for process in self.living.values():
                process.spool.abandon()
            shutil.rmtree(self.folder)

    @rule()
    @precondition(lambda self: len(self.living) < 3)
    def start_process(self) -> None:
        self._start()

    @rule(which=st.integers(0, 2), size=st.sampled_from([10, 300, 2_500, 9_000]), key=st.sampled_from(_KEYS))
    @precondition(lambda self: self.living)
    def append_event(self, which: int, size: int, key: bytes) -> None:
        self._append(self._process(which), size, key)

    @rule(which=st.integers(0, 2), count=st.integers(3, 40))
    @precondition(lambda self: self.living)
    def append_many(self, which: int, count: int) -> None:
        for _ in range(count):
            self._append(self._process(which), 300, _KEYS[0])

    @rule(which=st.integers(0, 2), count=st.integers(1, 40), acknowledged=st.integers(0, 40))
    @precondition(lambda self: self.living)
    def send_events(self, which: int, count: int, acknowledged: int) -> None:
        self._send(self._process(which), count, acknowledged)

    @rule(which=st.integers(0, 2))
    @precondition(lambda self: self.living)
    def send_again(self, which: int) -> None:
        process = self._process(which)
        process.spool.rewind_cursor()
        process.sent.clear()
        process.last_read.clear()

    @rule(which=st.integers(0, 2))
    @precondition(lambda self: self.living)
    def close_process(self, which: int) -> None:
        process = self._process(which)
        del self.living[process.name]
        process.spool.close()

    @rule(which=st.integers(0, 2))
    @precondition(lambda self: self.living)
    def kill_process(self, which: int) -> None:
        self._die(self._process(which))

    @rule(which=st.integers(0, 2), writes=st.integers(0, 8), torn=st.booleans())
    @precondition(lambda self: self.living)
    def kill_at_a_write(self, which: int, writes: int, torn: bool) -> None:
        process = self._process(which)
        self.writes_left, self.torn = writes, torn
        try:
            for size in (300, 9_000, 300, 9_000):
                self._append(process, size, _KEYS[1])
                self._send(process, 40, 40)
        except _Killed:
            pass
        self.writes_left = None
        self._die(process)
        self._free_locks()

    @rule(writes=st.integers(0, 6))
    @precondition(lambda self: not self.disk_full)
    def kill_at_start(self, writes: int) -> None:
        self.writes_left = writes
        process: _Process | None = None
        with suppress(_Killed):
            process = self._start()
        self.writes_left = None
        if process is not None:
            self._die(process)
        self._free_locks()

    @rule(which=st.integers(0, 2), writes=st.integers(0, 4), acknowledged=st.booleans())
    @precondition(lambda self: self.living)
    def kill_at_close(self, which: int, writes: int, acknowledged: bool) -> None:
        process = self._process(which)
        if acknowledged:
            self._send(process, 1_000, 1_000)
        self.writes_left = writes
        with suppress(_Killed):
            process.spool.close()
        self.writes_left = None
        self._die(process)
        self._free_locks()

    @rule(full=st.booleans())
    def fill_disk(self, full: bool) -> None:
        self.disk_full = full

    @rule(which=st.integers(0, 9), place=st.integers(0, 9_000), bit=st.integers(0, 7))
    def flip_bit(self, which: int, place: int, bit: int) -> None:
        if (path := self._segment_file(which)) is not None:
            place %= path.stat().st_size
            self._write(path, place, bytes([path.read_bytes()[place] ^ 1 << bit]))

    @rule(which=st.integers(0, 9), page=st.integers(0, 3))
    def zero_page(self, which: int, page: int) -> None:
        if (path := self._segment_file(which)) is not None:
            size = path.stat().st_size
            self._write(path, page * _PAGE, bytes(max(min(_PAGE, size - page * _PAGE), 0)))

    @rule(which=st.integers(0, 9), length=st.integers(0, 9_000))
    def cut_file(self, which: int, length: int) -> None:
        """Only of a dead process: a process that writes to a mapped file that was cut is killed."""
        spools = [process.spool for process in self.living.values()]
        held = {one.path for own in spools for queue in (own._own, own._orphans) for one in queue.segments}
        path = self._segment_file(which)
        if path is not None and path not in held:
            os.truncate(path, min(length, path.stat().st_size))

    def _watched(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return a write that may find the disk full, or its process killed before it."""

        def write_or_die(*arguments: Any, **options: Any) -> Any:
            if self.disk_full and write.__name__ == "allocate_blocks":
                raise OSError(28, "No space left on device")
            if self.writes_left is not None:
                if write.__name__ == "encode_frame":  # the next write is the frame's number in the head
                    data = write(*arguments)
                    return data[: len(data) // 2] if self.torn and not self.writes_left else data
                self.writes_left -= 1
                if self.writes_left < 0:
                    raise _Killed
            return write(*arguments, **options)

        return write_or_die

    def _start(self) -> _Process | None:
        self.started += 1
        name = f"p{self.started:04}"
        try:
            own = Spool(self.folder, name, _BYTES_MAX)
        except SettingsError:
            assert self.disk_full
            assert not list(self.folder.glob(f"{name}*"))
            return None
        self.living[name] = process = _Process(name, own)
        self._note_damages(process)
        return process

    def _process(self, which: int) -> _Process:
        return list(self.living.values())[which % len(self.living)]

    def _die(self, process: _Process) -> None:
        del self.living[process.name]
        process.spool.abandon()

    def _append(self, process: _Process, size: int, key: bytes) -> None:
        number = self.events
        self.events += 1
        try:
            place = process.spool.append_frame(Frame(1_000 + number, key, None, b"%08d" % number + bytes(size)), None)
        except OSError:
            return  # not accepted: the spool or the disk is full
        self.owner[number], self.file[number] = process.name, place.segment.path.name
        self.open.add(number)

    def _send(self, process: _Process, count: int, acknowledged: int) -> None:
        for place, frame in process.spool.read_frames(count):
            process.spool.mark_sent(place)
            if frame is None:
                self.lost[place.segment.path.name] += 1
                process.spool.mark_done(place)
                continue
            number = int(frame.value[:8])
            self._check_read(process, number)
            process.sent.append((place, number))
        for place, number in process.sent[:acknowledged]:
            self.open.discard(number)  # before its file is removed, at which the process may be killed
            process.spool.mark_done(place)
        del process.sent[:acknowledged]

    def _check_read(self, process: _Process, number: int) -> None:
        owner = self.owner.get(number)
        if owner is None:  # written, but its process was killed before it was accepted
            return
        assert owner == process.name or owner not in self.living, "a living process's event was taken"
        assert number > process.last_read.get(owner, -1), "an event came twice, or before an older one"
        process.last_read[owner] = number

    def _note_damages(self, process: _Process) -> None:
        damages: list[SpoolDamaged] = process.spool.damages
        for damage in damages:
            name = damage.path.name
            self.lost[name] = max(self.lost[name], damage.lost)
            if "head" in str(damage):
                self.head_lost.add(name)
        damages.clear()

    def _segment_file(self, which: int) -> Path | None:
        found = [path for path in sorted(self.folder.glob("*.seg")) if path.stat().st_size]
        return found[which % len(found)] if found else None

    def _write(self, path: Path, place: int, data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(place)
            file.write(data)

    def _drain_everything(self) -> None:
        self.disk_full, self.writes_left = False, None
        for process in list(self.living.values()):
            self._die(process)
        last = self._start()
        assert last is not None
        while True:
            before = last.spool.outstanding
            self._send(last, 1_000, 1_000)
            if last.spool.may_take_over:
                last.spool.take_over(last.spool.claim_orphans())
                self._note_damages(last)
            elif last.spool.outstanding == before:
                break
        assert last.spool.outstanding == 0
        del self.living[last.name]
        last.spool.close()
        missing = Counter(self.file[number] for number in self.open)
        for name, count in missing.items():
            assert name in self.lost, f"{count} events of {name} are gone without a word"
            assert self.lost[name] >= count or name in self.head_lost
        left = {path.name for path in self.folder.iterdir() if not path.name.endswith(".damaged")}
        assert left == set()


def test_every_event_is_sent_or_still_stored_or_reported_as_lost() -> None:
    run_state_machine_as_test(SpoolMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
