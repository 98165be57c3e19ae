"""When a row was first visible."""

from benchmarks.measurements.sink_delay import visible_at


def test_a_row_is_visible_from_the_first_look_that_reached_its_offset() -> None:
    assert visible_at([(3, 10.0), (9, 11.0)], 4) == 11.0
