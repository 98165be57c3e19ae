"""The spool file alone: what it keeps, gives back, takes over and throws away."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionary.producers import SettingsError, SpoolUnusable
from sessionary.producers.delivery.spool import segment
from sessionary.producers.delivery.spool.orphans import summarize_folder, verify_folder
from sessionary.producers.delivery.spool.segment import Frame, FramePosition
from sessionary.producers.delivery.spool.spool import Spool
from tests.core.producers.delivery.spool.spools import (
    BYTES_MAX,
    drain_all,
    frame,
    leave_dead,
    new_spool,
    number_of,
    read_all,
    segment_files,
)


def fill(own: Spool, why: str) -> list[FramePosition]:
    """Append until it is full, which must be for the reason `why`."""
    places: list[FramePosition] = []

    def go_on() -> None:
        while len(places) < 10_000:
            places.append(own.append_frame(frame(len(places), 800), None))

    with pytest.raises(OSError, match=why):
        go_on()
    return places


def test_frames_come_back_in_order_as_they_were(tmp_path: Path) -> None:
    own = new_spool(tmp_path)
    frames = [frame(n, 8 * n + 8) for n in range(40)]
    for one in frames:
        own.append_frame(one, None)
    assert not own.at_end
    assert [one for _, one in read_all(own)] == frames
    assert own.at_end
    own.close()


def test_a_dead_process_s_frames_of_a_session_come_before_its_new_ones_and_in_order(tmp_path: Path) -> None:
    dead = new_spool(tmp_path, "dead", bytes_max=8 << 12)  # many small segments
    frames = [frame(n, 400) for n in range(60)]
    for one in frames:
        dead.append_frame(one, None)
    assert len(segment_files(tmp_path)) > 3
    leave_dead(dead)
    own = new_spool(tmp_path, "own")
    assert (own.taken_over, own.outstanding) == (60, 60)
    own.append_frame(frame(99), None)
    places = read_all(own)
    assert [one for _, one in places] == frames
    for place, _ in places:
        own.mark_done(place)
    after = read_all(own)
    assert [one for _, one in after] == [frame(99)]
    own.mark_done(after[0][0])
    own.close()
    assert list(tmp_path.iterdir()) == []


def test_a_living_process_s_frames_are_left_alone(tmp_path: Path) -> None:
    living = new_spool(tmp_path, "living")
    living.append_frame(frame(1), None)
    other = new_spool(tmp_path, "other")
    assert other.taken_over == 0
    other.close()
    assert len(segment_files(tmp_path)) == 1
    living.close()
    assert new_spool(tmp_path, "third").taken_over == 1


def test_what_is_done_is_removed_and_what_was_cleared_never_returns(tmp_path: Path) -> None:
    own = new_spool(tmp_path)
    for n in range(3):
        place = own.append_frame(frame(n), None)
        own.mark_sent(place)
        own.mark_done(place)
    own.truncate_tail()
    own.append_frame(frame(7), None)  # as long as the first: the second must not be read behind it
    leave_dead(own)
    again = new_spool(tmp_path, "again")
    assert [one for _, one in read_all(again)] == [frame(7)]
    again.close()


def test_segments_go_as_soon_as_they_are_done(tmp_path: Path) -> None:
    own = new_spool(tmp_path, bytes_max=8 << 12)
    places = [own.append_frame(frame(n, 400), None) for n in range(60)]
    assert len(segment_files(tmp_path)) > 3
    for place in places:
        own.mark_sent(place)
        own.mark_done(place)
    assert len(segment_files(tmp_path)) == 1
    assert own.at_end
    own.close()
    assert list(tmp_path.iterdir()) == []


def test_rewinding_gives_only_what_is_not_done_in_order(tmp_path: Path) -> None:
    own = new_spool(tmp_path)
    places = [own.append_frame(frame(n), None) for n in range(6)]
    for place in places:
        own.mark_sent(place)
    for n in (0, 3):
        own.mark_done(places[n])
    own.rewind_cursor()
    assert [one for _, one in read_all(own)] == [frame(n) for n in (1, 2, 4, 5)]
    own.close()


def test_a_full_spool_says_so_and_takes_more_once_there_is_room(tmp_path: Path) -> None:
    own = new_spool(tmp_path, bytes_max=1 << 16)
    places = fill(own, "limit")
    assert len(places) == own.outstanding
    for place in places:
        own.mark_sent(place)
        own.mark_done(place)
    own.append_frame(frame(1), None)
    own.close()


def test_a_full_disk_is_an_error_and_leaves_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = new_spool(tmp_path, bytes_max=8 << 12)
    allocate = segment.allocate_blocks

    def full(fd: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment, "allocate_blocks", full)
    taken = len(fill(own, "No space"))
    assert list(tmp_path.glob("*.tmp")) == []
    monkeypatch.setattr(segment, "allocate_blocks", allocate)
    own.append_frame(frame(100, 800), None)
    assert [one for _, one in read_all(own)] == [*(frame(n, 800) for n in range(taken)), frame(100, 800)]
    own.close()


def test_a_folder_that_cannot_be_used_is_a_settings_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="SESSIONARY_SPOOL_DIR"):
        new_spool(tmp_path / "file" / "below")


def test_a_folder_with_segments_of_an_older_form_is_refused_and_left_alone(tmp_path: Path) -> None:
    older = tmp_path / "dead.00000001.wal"
    older.write_bytes(b"events")
    uses: list[Callable[[], object]] = [
        lambda: new_spool(tmp_path),
        lambda: summarize_folder(tmp_path),
        lambda: list(verify_folder(tmp_path)),
    ]
    for use in uses:
        with pytest.raises(
            SpoolUnusable, match=r"dead\.00000001\.wal, a segment of an older form .* move it elsewhere"
        ):
            use()
    assert list(tmp_path.iterdir()) == [older]
    assert older.read_bytes() == b"events"


def test_a_value_larger_than_a_segment_fits(tmp_path: Path) -> None:
    own = new_spool(tmp_path)
    big = Frame(1, b"k", None, b"x" * (BYTES_MAX // 2))
    own.append_frame(big, None)
    own.append_frame(frame(1), None)
    assert [one for _, one in read_all(own)] == [big, frame(1)]
    own.close()


def test_what_dead_processes_left_takes_no_room_of_a_new_one(tmp_path: Path) -> None:
    dead = [new_spool(tmp_path, name) for name in ("a", "b", "c")]
    for one in dead:
        for n in range(600):
            one.append_frame(frame(n, 1_000), None)
    for one in dead:
        leave_dead(one)
    own = new_spool(tmp_path, "own")
    assert own.taken_over >= 600
    for n in range(600):
        own.append_frame(frame(n, 1_000, b"tenant:other"), None)
    own.close()


def test_own_events_and_orphans_are_read_in_turn(tmp_path: Path) -> None:
    dead = new_spool(tmp_path, "dead")
    for n in range(100):
        dead.append_frame(frame(n), None)
    leave_dead(dead)
    own = new_spool(tmp_path, "own")
    for n in range(100, 120):
        own.append_frame(frame(n, key=b"tenant:new"), None)
    assert own.may_send(b"tenant:third") is False  # own events wait
    read = [number_of(one) for _, one in read_all(own)]
    first = read[:40]
    assert sum(n >= 100 for n in first) == 20
    assert [n for n in read if n < 100] == list(range(100))
    assert [n for n in read if n >= 100] == list(range(100, 120))
    own.close()


def test_only_the_sessions_of_orphans_wait_for_them(tmp_path: Path) -> None:
    dead = new_spool(tmp_path, "dead")
    dead.append_frame(frame(1), None)
    leave_dead(dead)
    own = new_spool(tmp_path, "own")
    assert own.may_send(b"tenant:new")
    assert not own.may_send(b"tenant:session")
    own.append_frame(frame(2), None)
    (place, one), *others = read_all(own)
    assert (number_of(one), others) == (1, [])
    own.rewind_cursor()
    ((place, one),) = read_all(own)
    own.mark_done(place)
    assert [number_of(one) for one in drain_all(own)] == [2]
    assert own.may_send(b"tenant:session")
    own.close()


def test_orphans_fill_only_a_part_of_the_delivery_queue(tmp_path: Path) -> None:
    dead = new_spool(tmp_path, "dead", 64 << 20)
    for n in range(80):
        dead.append_frame(frame(n, 100_000), None)
    leave_dead(dead)
    own = new_spool(tmp_path, "own")
    sent = read_all(own)
    assert 40 <= len(sent) <= 50
    for place, _ in sent:
        own.mark_done(place)
    assert len(sent) + len(drain_all(own)) == 80
    own.close()


def test_many_dead_processes_are_taken_over_by_portions(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        dead = new_spool(tmp_path / name, name)
        for n in range(600):
            dead.append_frame(frame(n, 1_000), None)
        leave_dead(dead)
        for path in (tmp_path / name).iterdir():
            path.rename(tmp_path / path.name)
        (tmp_path / name).rmdir()
    own = new_spool(tmp_path, "own", 1 << 20)
    assert own.taken_over == 1_200
    assert not own.may_take_over
    assert len(drain_all(own)) == 1_200
    assert own.may_take_over
    assert own.take_over(own.claim_orphans()) == 600
    assert not own.may_take_over
    assert len(drain_all(own)) == 600
    own.close()
    assert list(tmp_path.iterdir()) == []


def test_an_abandoned_spool_stays_its_parent_s(tmp_path: Path) -> None:
    own = new_spool(tmp_path, "own")
    own.append_frame(frame(1), None)
    child = os.fork()
    if child == 0:
        own.abandon()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other = new_spool(tmp_path, "other")
    assert other.taken_over == 0
    other.close()
    own.append_frame(frame(2), None)
    assert [number_of(one) for one in drain_all(own)] == [1, 2]
    own.close()


def test_a_child_that_outlives_its_parent_does_not_hold_the_abandoned_spool(tmp_path: Path) -> None:
    own = new_spool(tmp_path, "own")
    own.append_frame(frame(1), None)
    own.abandon()
    other = new_spool(tmp_path, "other")
    assert other.taken_over == 1
    other.close()


def test_a_full_disk_is_an_error_where_blocks_are_allocated_by_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    own = new_spool(tmp_path, bytes_max=8 << 12)
    write = os.write

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    taken = len(fill(own, "No space"))
    monkeypatch.setattr(os, "write", write)
    own.append_frame(frame(100, 800), None)
    assert len(drain_all(own)) == taken + 1
    own.close()


def test_blocks_are_written_if_the_file_system_allocates_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    own = new_spool(tmp_path)
    own.append_frame(frame(1), None)
    (path,) = segment_files(tmp_path)
    assert path.stat().st_blocks * 512 >= path.stat().st_size
    own.close()
