"""Quantiles of latencies."""

from benchmarks.measurements.latency import quantile


def test_a_quantile_is_a_measured_value() -> None:
    assert [quantile([1.0, 2.0, 3.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]
