"""The rate of a program, from samples of its commits."""

from benchmarks.harness.consumption import Rate, Sample, steady_rate


def test_the_rate_is_that_behind_the_warm_up() -> None:
    samples = [Sample(float(n), 100 * n * n, float(n), 2.0 * n) for n in range(11)]
    assert steady_rate(samples, 2_000) == Rate(events=7_500, elapsed_s=5.0, cpu_s=5.0, broker_cpu_s=10.0)
