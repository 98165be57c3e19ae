"""What is asked of the figures: each target is met at its bound, and missed a little beyond it."""

from collections.abc import Sequence

import pytest

from benchmarks.harness.consumption import Rate
from benchmarks.measurements import base_client, base_commit, base_sinks
from benchmarks.measurements.base_commit import Pair
from benchmarks.measurements.full_job import JobRun
from benchmarks.measurements.growth import growth_results
from benchmarks.measurements.keyed_count.check import OutputCheck
from benchmarks.measurements.keyed_count.compare import Run, comparison_results
from benchmarks.measurements.latency import Latency, rate_results
from benchmarks.measurements.quix_core import form_results
from benchmarks.measurements.recovery import Recovery, recovery_results
from benchmarks.measurements.streams_full_job.compare import LIVE, size_results
from benchmarks.measurements.streams_full_job.engines import ENGINES, OURS, STORES, EngineRun
from benchmarks.measurements.streams_full_job.outputs import EngineOutputs
from benchmarks.results import Result


def rate_of(per_s: float, cpu_us: float) -> Rate:
    """Return a rate of a thousand events."""
    return Rate(1_000, 1_000 / per_s, cpu_us / 1_000, 1.0)


def met_by_name(results: Sequence[Result]) -> dict[str, bool | None]:
    """Return of each figure whether it meets its target; None without one."""
    return {result.name: result.met for result in results}


@pytest.mark.parametrize(
    ("core", "rate", "cost"), [("native", 2.2, 0.42), ("python", 1.0, 1.0)], ids=["native core", "pure core"]
)
def test_the_full_job_is_so_much_faster_and_cheaper_than_the_other_commit_s(
    core: str, rate: float, cost: float
) -> None:
    def met_with(rate: float, cost: float) -> tuple[bool | None, bool | None]:
        mine = {"events_per_s": 100.0 * rate, "cpu_us": 100.0 * cost, "core": core, "rules": 2}
        other = {"events_per_s": 100.0, "cpu_us": 100.0, "core": "python", "rules": 2}
        met = met_by_name(base_commit.pair_results([Pair(mine, other)], "0123456789ab", 1_000))
        return met["full job, events per second: ours / theirs"], met["full job, CPU per event: ours / theirs"]

    assert met_with(rate, cost) == (True, True)
    assert met_with(rate - 0.01, cost) == (False, True)
    assert met_with(rate, cost + 0.01) == (True, False)


def test_the_full_job_s_figures_stand_beside_those_of_the_other_commit() -> None:
    mine, other = (
        {"events_per_s": rate, "cpu_us": cost, "core": "native", "rules": 2} for rate, cost in ((300.0, 2.0), (100, 8))
    )
    found = {one.name: one for one in base_commit.pair_results([Pair(mine, other)], "0123456789ab", 1_000)}
    assert [found[f"full job, {whose}"].median for whose in ("ours", "theirs")] == [300, 100]
    assert [found[f"full job, {whose}, CPU per event"].median for whose in ("ours", "theirs")] == [2, 8]


@pytest.mark.parametrize(("core", "bound"), [("native", 1.5), ("python", 1.0)])
def test_the_sinks_are_so_much_faster_than_the_other_commit_s(core: str, bound: float) -> None:
    def met_with(ratio: float) -> bool | None:
        mine, other = (
            {"rows_per_s": rate, "cpu_us": 1.0, "engine_us": 1.0, "core": build}
            for rate, build in ((100.0 * ratio, core), (100.0, "python"))
        )
        met = met_by_name(base_sinks.pair_results([Pair(mine, other)], "0123456789ab", {"audit": 10}))
        return met["sinks, rows per second: ours / theirs"]

    assert (met_with(bound), met_with(bound - 0.01)) == (True, False)


def test_a_call_in_a_flood_takes_at_most_twenty_microseconds() -> None:
    def met_with(p50_us: float) -> bool | None:
        pair = Pair({"p50_us": p50_us, "cpu_us": 1.0}, {"p50_us": 40.0, "cpu_us": 1.0})
        return met_by_name(base_client.pair_results("flood", [pair], "0123456789ab"))["emit, flood, p50, ours"]

    assert (met_with(20.0), met_with(20.1)) == (True, False)


def test_a_processor_reads_three_hundred_thousand_sessions_a_second() -> None:
    def met_with(recovery_s: float) -> bool | None:
        runs = [Recovery(recovery_s, 2.0, 2.0)]
        return met_by_name(recovery_results(300_000, 1, runs, runs))["recovery, sessions per second"]

    assert (met_with(1.0), met_with(1.01)) == (True, False)


def test_the_core_is_five_times_as_fast_as_in_quix_streams() -> None:
    def met_with(events_per_s: float) -> bool | None:
        ours = JobRun(events_per_s, 1.0, 1.0, 1.0, 1.0, 1.0, 0)
        met = met_by_name(form_results("avro", [rate_of(100.0, 1.0)], [ours]))
        return met["ours / the core in Quix Streams, rows in avro"]

    assert (met_with(500.0), met_with(499.0)) == (True, False)


def test_counting_costs_no_more_cpu_than_in_kafka_streams_in_memory() -> None:
    def runs_of(cpu_us: float) -> list[Run]:
        return [Run(rate_of(100.0, cpu_us), OutputCheck(10, 0, 0, 0), 10, 1.0)]

    def result_with(ours_us: float) -> Result:
        found = comparison_results({"ours": runs_of(ours_us), "streams-memory": runs_of(5.0)})
        return next(one for one in found if one.name == "CPU per event, streams-memory / ours")

    assert result_with(2.5).runs == [2.0]
    assert (result_with(5.0).met, result_with(5.1).met) == (True, False)


@pytest.mark.parametrize(("rate", "bound"), [(2_000, 1.3), (8_000, 2.0)])
def test_a_slow_answer_comes_soon_beside_a_hop_that_commits_as_often(rate: int, bound: float) -> None:
    def met_with(ratio: float) -> bool | None:
        ours, hop, paced = (Latency(1.0, 1.0, p99, p99, 100, 0.0) for p99 in (10.0 * ratio, 1.0, 10.0))
        met = met_by_name(rate_results(rate, {"processor": [ours], "hop": [hop], "paced hop": [paced]}))
        assert met[f"{rate:,}/s, p99 to the baseline's"] is None  # a hop that commits back to back
        return met[f"{rate:,}/s, p99 to the paced baseline's"]

    assert (met_with(bound), met_with(bound + 0.01)) == (True, False)


def test_an_event_costs_hardly_more_beside_many_live_sessions() -> None:
    def met_with(wall_us: float, cpu_us: float) -> tuple[bool | None, ...]:
        few, many = (JobRun(1.0, cpu, wall, 1.0, 1.0, 1.0, 0) for cpu, wall in ((10.0, 10.0), (cpu_us, wall_us)))
        met = met_by_name(growth_results({1_000: [few], 1_000_000: [many]}, 100))
        return tuple(met[f"growth of {what} per event, 1,000,000 to 1,000"] for what in ("wall", "CPU"))

    assert met_with(11.0, 11.0) == (True, True)
    assert met_with(11.1, 11.0) == (False, True)
    assert met_with(11.0, 11.1) == (True, False)


@pytest.mark.parametrize("live", LIVE)
def test_an_event_of_the_full_job_costs_no_more_cpu_than_in_kafka_streams(live: int) -> None:
    def met_with(ours_us: float) -> set[bool | None]:
        costs = {engine: ours_us if engine == OURS else 10.0 for engine in ENGINES}
        round_ = {engine: EngineRun(100.0, cpu_us, 1.0, 1.0, 1, 0.0) for engine, cpu_us in costs.items()}
        met = met_by_name(size_results(live, 100, 10, [(round_, EngineOutputs({}, {}, 0, 0))]))
        return {met[f"ours / {engine}, {live:,} live sessions, events per CPU second"] for engine in STORES}

    assert met_with(10.0) == {True}
    assert met_with(10.1) == {False}
