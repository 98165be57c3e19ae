"""What is said of a program that could not keep its pace."""

from benchmarks.measurements.call_latency import late_notes


def test_a_late_request_is_reported() -> None:
    assert late_notes([{"late_ms": 3.0}, {"late_ms": 50.0}]) == []
    (note,) = late_notes([{"late_ms": 3.0}, {"late_ms": 270.4}])
    assert "270 ms late" in note
