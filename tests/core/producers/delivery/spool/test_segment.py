"""Damage to files of dead processes: only the damaged frames are lost, and the loss is reported."""

import random
from pathlib import Path

import pytest

from sessionary.producers.delivery.spool import segment
from sessionary.producers.delivery.spool.segment import HEAD_BYTES, Frame
from tests.core.producers.delivery.spool.spools import (
    drain_all,
    frame,
    leave_dead,
    new_spool,
    number_of,
    segment_files,
)

FRAMES = 100


def dead_segment(folder: Path, used_before: int = 0) -> Path:
    """Leave a dead process with one segment; return its file."""
    dead = new_spool(folder, "dead")
    for n in range(used_before):
        place = dead.append_frame(frame(n, 4_000), None)
        dead.mark_sent(place)
        dead.mark_done(place)
    dead.truncate_tail()
    for n in range(FRAMES):
        dead.append_frame(frame(n, 200), None)
    leave_dead(dead)
    (path,) = segment_files(folder)
    return path


def write_at(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def take_over(folder: Path) -> tuple[list[int], int]:
    """Return the numbers that a new process reads, and how many it reports as lost."""
    own = new_spool(folder, "own")
    found = [number_of(one) for one in drain_all(own)]
    lost = sum(damage.lost for damage in own.damages)
    own.close()
    return found, lost


def test_a_flipped_bit_in_the_first_frame_loses_this_frame_only(tmp_path: Path) -> None:
    path = dead_segment(tmp_path)
    write_at(path, HEAD_BYTES + 40, b"\xff")
    assert take_over(tmp_path) == (list(range(1, FRAMES)), 1)
    assert [path.name for path in tmp_path.iterdir()] == [f"{path.name}.damaged"]


@pytest.mark.parametrize("used_before", [0, 10])
def test_a_page_of_zeros_loses_only_its_frames(tmp_path: Path, used_before: int) -> None:
    path = dead_segment(tmp_path, used_before)
    write_at(path, 4_096, bytes(4_096))
    found, lost = take_over(tmp_path)
    assert 0 < lost < 30
    assert len(found) + lost == FRAMES
    assert found == sorted(set(found))


def test_a_truncated_file_gives_what_is_left(tmp_path: Path) -> None:
    path = dead_segment(tmp_path)
    with path.open("r+b") as file:
        file.truncate(10_000)
    found, lost = take_over(tmp_path)
    assert len(found) + lost == FRAMES
    assert found == list(range(len(found)))


@pytest.mark.parametrize("left", [0, 10, HEAD_BYTES])
def test_a_file_that_is_cut_in_its_head_is_set_aside(tmp_path: Path, left: int) -> None:
    path = dead_segment(tmp_path)
    with path.open("r+b") as file:
        file.truncate(left)
    found, lost = take_over(tmp_path)
    assert found == []
    assert lost == (FRAMES if left == HEAD_BYTES else 1)
    assert [path.name for path in tmp_path.iterdir()] == [f"{path.name}.damaged"]


@pytest.mark.parametrize("byte", range(24))
def test_a_damaged_head_costs_no_frame(tmp_path: Path, byte: int) -> None:
    path = dead_segment(tmp_path)
    write_at(path, byte, bytes([path.read_bytes()[byte] ^ 4]))
    assert take_over(tmp_path) == (list(range(FRAMES)), 0)
    assert [path.name for path in tmp_path.iterdir()] == [f"{path.name}.damaged"]


def test_frames_of_an_earlier_use_never_return(tmp_path: Path) -> None:
    path = dead_segment(tmp_path, used_before=20)
    assert len(path.read_bytes().split(b"00000019")) > 2  # they are still in the file
    write_at(path, HEAD_BYTES + 40, b"\xff")
    found, lost = take_over(tmp_path)
    assert (found, lost) == (list(range(1, FRAMES)), 1)


@pytest.mark.parametrize("seed", range(60))
def test_random_damage_loses_at_most_what_is_reported(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    path = dead_segment(tmp_path, used_before=dice.choice([0, 20]))
    size = len(path.read_bytes())
    for _ in range(dice.randrange(1, 6)):
        if dice.random() < 0.5:
            place = dice.randrange(FRAMES * 240)
            write_at(path, place, bytes([path.read_bytes()[place] ^ 1 << dice.randrange(8)]))
        else:
            write_at(path, dice.randrange(HEAD_BYTES // 4, size // 4_096 // 3) * 4_096, bytes(4_096))
    found, lost = take_over(tmp_path)
    assert found == sorted(set(found))
    assert set(found) <= set(range(FRAMES))
    assert len(found) + lost == FRAMES


def test_a_frame_that_is_damaged_while_its_process_lives_is_known(tmp_path: Path) -> None:
    own = new_spool(tmp_path)
    places = [own.append_frame(frame(n), None) for n in range(3)]
    segment = places[1].segment
    segment.map[places[1].offset + 30] ^= 1
    read = own.read_frames(9)
    assert [None if one is None else number_of(one) for _, one in read] == [0, None, 2]
    for place, _ in read:
        own.mark_sent(place)
        own.mark_done(place)
    own.close()
    assert [path.name.partition(".")[2] for path in tmp_path.iterdir()] == ["00000001.seg.damaged"]


def test_a_frame_comes_back_as_it_was_written() -> None:
    one = Frame(1 << 40, b"k\xff", "00-trace", b"\0" * 100)
    assert segment.read_frame(segment.encode_frame(7, one), 0) == (segment.FRAME_HEAD.size + 12 + 2 + 8 + 100, one)
