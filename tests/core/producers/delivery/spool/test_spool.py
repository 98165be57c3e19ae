"""The spool file alone: what it keeps, gives back, takes over and throws away."""

import os
from pathlib import Path

import pytest

from sessionary.producers import SettingsError
from sessionary.producers.delivery.spool.segment import Frame, FramePosition
from sessionary.producers.delivery.spool.spool import Spool

BYTES_MAX = 1 << 20


def frame(n: int, size: int = 20) -> Frame:
    return Frame(1_000 + n, b"tenant:session", None if n % 2 else "00-trace", f"{n:08d}".encode() * (size // 8))


def spool(folder: Path, name: str = "one", bytes_max: int = BYTES_MAX) -> Spool:
    return Spool(folder, name, bytes_max)


def abandoned(own: Spool) -> None:
    """Leave a spool as `kill -9` does: the locks are gone, the files stay."""
    for fd in own._locks.values():
        os.close(fd)
    for segment in own._segments:
        segment.map.close()


def read_all(own: Spool) -> list[tuple[FramePosition, Frame]]:
    found: list[tuple[FramePosition, Frame]] = []
    while batch := own.read_frames(7):
        for place, one in batch:
            own.mark_sent(place)
            found.append((place, one))
    return found


def fill(own: Spool, why: str) -> list[FramePosition]:
    """Append until it is full, which must be for the reason `why`."""
    places: list[FramePosition] = []

    def go_on() -> None:
        while len(places) < 10_000:
            places.append(own.append_frame(frame(len(places), 800), None))

    with pytest.raises(OSError, match=why):
        go_on()
    return places


def wal(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.wal"))


def test_frames_come_back_in_order_as_they_were(tmp_path: Path) -> None:
    own = spool(tmp_path)
    frames = [frame(n, 8 * n + 8) for n in range(40)]
    for one in frames:
        own.append_frame(one, None)
    assert not own.at_end
    assert [one for _, one in read_all(own)] == frames
    assert own.at_end
    own.close()


def test_a_dead_process_s_frames_come_first_and_in_order(tmp_path: Path) -> None:
    dead = spool(tmp_path, "dead", bytes_max=8 << 12)  # many small segments
    frames = [frame(n, 400) for n in range(60)]
    for one in frames:
        dead.append_frame(one, None)
    assert len(wal(tmp_path)) > 3
    abandoned(dead)
    own = spool(tmp_path, "own")
    assert (own.taken_over, own.outstanding) == (60, 60)
    own.append_frame(frame(99), None)
    places = read_all(own)
    assert [one for _, one in places] == [*frames, frame(99)]
    for place, _ in places:
        own.mark_done(place)
    own.close()
    assert list(tmp_path.iterdir()) == []


def test_a_living_process_s_frames_are_left_alone(tmp_path: Path) -> None:
    living = spool(tmp_path, "living")
    living.append_frame(frame(1), None)
    other = spool(tmp_path, "other")
    assert other.taken_over == 0
    other.close()
    assert len(wal(tmp_path)) == 1
    living.close()
    assert spool(tmp_path, "third").taken_over == 1


@pytest.mark.parametrize("damage", ["zeroed", "flipped"])
def test_a_torn_tail_costs_the_torn_frame_only(tmp_path: Path, damage: str) -> None:
    dead = spool(tmp_path, "dead")
    places = [dead.append_frame(frame(n), None) for n in range(5)]
    last = places[-1]
    middle = (last.offset + last.end) // 2
    dead._segments[0].map[middle : last.end] = (b"\xff" if damage == "flipped" else b"\0") * (last.end - middle)
    abandoned(dead)
    own = spool(tmp_path, "own")
    assert [one for _, one in read_all(own)] == [frame(n) for n in range(4)]
    assert len(own.torn) == 1
    own.close()


def test_what_is_done_is_removed_and_what_was_cleared_never_returns(tmp_path: Path) -> None:
    own = spool(tmp_path)
    for n in range(3):
        place = own.append_frame(frame(n), None)
        own.mark_sent(place)
        own.mark_done(place)
    own.truncate_tail()
    own.append_frame(frame(7), None)  # as long as the first: the second must not be read behind it
    abandoned(own)
    again = spool(tmp_path, "again")
    assert [one for _, one in read_all(again)] == [frame(7)]
    again.close()


def test_segments_go_as_soon_as_they_are_done(tmp_path: Path) -> None:
    own = spool(tmp_path, bytes_max=8 << 12)
    places = [own.append_frame(frame(n, 400), None) for n in range(60)]
    assert len(wal(tmp_path)) > 3
    for place in places:
        own.mark_sent(place)
        own.mark_done(place)
    assert len(wal(tmp_path)) == 1
    assert own.at_end
    own.close()
    assert list(tmp_path.iterdir()) == []


def test_rewinding_gives_only_what_is_not_done_in_order(tmp_path: Path) -> None:
    own = spool(tmp_path)
    places = [own.append_frame(frame(n), None) for n in range(6)]
    for place in places:
        own.mark_sent(place)
    for n in (0, 3):
        own.mark_done(places[n])
    own.rewind_cursor()
    assert [one for _, one in read_all(own)] == [frame(n) for n in (1, 2, 4, 5)]
    own.close()


def test_a_full_spool_says_so_and_takes_more_once_there_is_room(tmp_path: Path) -> None:
    own = spool(tmp_path, bytes_max=1 << 16)
    places = fill(own, "limit")
    assert len(places) == own.outstanding
    for place in places:
        own.mark_sent(place)
        own.mark_done(place)
    own.append_frame(frame(1), None)
    own.close()


def test_a_full_disk_is_an_error_and_leaves_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = spool(tmp_path, bytes_max=8 << 12)

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    taken = len(fill(own, "No space"))
    monkeypatch.undo()
    own.append_frame(frame(100, 800), None)
    assert [one for _, one in read_all(own)] == [*(frame(n, 800) for n in range(taken)), frame(100, 800)]
    own.close()


def test_a_folder_that_cannot_be_used_is_a_settings_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="SESSIONARY_SPOOL_DIR"):
        spool(tmp_path / "file" / "below")


def test_a_value_larger_than_a_segment_fits(tmp_path: Path) -> None:
    own = spool(tmp_path)
    big = Frame(1, b"k", None, b"x" * (BYTES_MAX // 2))
    own.append_frame(big, None)
    own.append_frame(frame(1), None)
    assert [one for _, one in read_all(own)] == [big, frame(1)]
    own.close()
