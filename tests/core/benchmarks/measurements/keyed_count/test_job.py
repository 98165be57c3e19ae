"""The events of the keyed count."""

from benchmarks.measurements.keyed_count.job import drawn_keys


def test_keys_are_drawn_alike_each_time() -> None:
    assert list(drawn_keys(50)) == list(drawn_keys(100))[:50]
