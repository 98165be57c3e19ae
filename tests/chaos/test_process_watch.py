"""What counts as growth of a process, and that a process can be sampled."""

import os
from collections.abc import Callable

import pytest

from tests.chaos.process_watch import LIFE_S_MIN, PartitionCount, ProcessWatch, Sample, compare_windows, read_sample
from tests.support.waiting import wait_until

MIB = 1 << 20


def life(use: Callable[[float], Sample], lived_s: float = 600.0) -> list[Sample]:
    """Return samples of a life, one each two seconds."""
    return [use(n * 2.0) for n in range(int(lived_s / 2) + 1)]


def steady(at_s: float) -> Sample:
    return Sample(at_s, 20, 40, 100 * MIB)


def test_a_steady_process_and_one_with_peaks_do_not_grow() -> None:
    found = compare_windows("w1", life(steady))
    assert found is not None
    assert (found.threads, found.descriptors, found.faults) == ((20, 20), (40, 40), ())

    def with_peaks(at_s: float) -> Sample:
        return steady(at_s)._replace(threads=90, memory_bytes=400 * MIB) if at_s % 10 else steady(at_s)

    peaked = compare_windows("w1", life(with_peaks))
    assert peaked is not None
    assert peaked.faults == ()


@pytest.mark.parametrize(
    ("field", "text"),
    [("threads", "threads"), ("descriptors", "descriptors"), ("memory_bytes", "bytes of memory")],
)
def test_a_slow_leak_is_named(field: str, text: str) -> None:
    rate = 0.5 * MIB if field == "memory_bytes" else 0.2  # a second

    def leaking(at_s: float) -> Sample:
        start = steady(at_s)
        return start._replace(**{field: int(getattr(start, field) + at_s * rate)})

    found = compare_windows("sink-audit", life(leaking))
    assert found is not None
    (fault,) = found.faults
    assert fault.startswith("sink-audit had at most")
    assert text in fault


def test_a_brief_life_is_not_judged() -> None:
    assert compare_windows("w1", life(steady, LIFE_S_MIN - 2)) is None
    assert compare_windows("w1", [steady(0.0), steady(LIFE_S_MIN)]) is None


@pytest.mark.parametrize("field", ["partitions", "at_work"])
@pytest.mark.parametrize(("got_at_s", "judged"), [(200.0, True), (300.0, True), (357.0, False), (590.0, False)])
def test_a_worker_is_judged_by_when_it_had_as_much_to_do_as_at_its_end(
    got_at_s: float, judged: bool, field: str
) -> None:
    def owning(at_s: float) -> Sample:
        little = steady(at_s)._replace(**{field: 2})
        return little._replace(**{field: 4, "threads": 60}) if at_s > got_at_s else little

    found = compare_windows("w1", life(owning))
    assert (found is not None) == judged
    assert found is None or found.faults == ()


@pytest.mark.parametrize(("got_at_s", "is_named"), [(100.0, True), (400.0, False)])
def test_memory_is_compared_once_a_worker_had_all_partitions_that_it_ever_had(got_at_s: float, is_named: bool) -> None:
    def owning(at_s: float) -> Sample:
        both = got_at_s < at_s < got_at_s + 40  # while another worker is away
        grown = 100 * MIB if at_s > 400 else 0
        return Sample(at_s, 20, 40, 100 * MIB + grown, partitions=4 if both else 2)

    found = compare_windows("w1", life(owning))
    assert found is not None
    assert [fault[:10] for fault in found.faults] == ["w1 had at "][: int(is_named)]


def test_a_worker_whose_broker_was_away_did_not_grow() -> None:
    def without_broker(at_s: float) -> Sample:
        is_away = 230 < at_s < 350
        return steady(at_s)._replace(descriptors=15, at_work=0) if is_away else steady(at_s)._replace(at_work=4)

    found = compare_windows("w1", life(without_broker))
    assert found is not None
    assert found.faults == ()


def test_processes_are_sampled_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.process_watch._LOOK_S", 0.01)
    asked: list[int] = []

    def pids() -> dict[str, int | None]:
        asked.append(1)
        return {"me": os.getpid(), "ended": None}

    with ProcessWatch(pids, lambda name: PartitionCount(len(name), 1)) as watch:
        wait_until(lambda: len(asked) > 3, 10, "samples")
    assert {name for name, _ in watch._samples} == {"me"}
    (samples,) = watch._samples.values()
    assert all(one.threads >= 1 and one.descriptors >= 3 and one.memory_bytes > MIB for one in samples)
    assert {(one.partitions, one.at_work) for one in samples} == {(len("me"), 1)}
    assert read_sample(1 << 22) is None
