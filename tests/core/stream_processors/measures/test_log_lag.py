"""Lag in records and in seconds, by the ends of logs that are asked for now and then."""

from sessionary.stream_processors.measures.log_lag import LogLag

NOW_MS = 1_795_219_200_000


def test_a_lag_is_the_offsets_between_what_is_folded_and_the_log_s_end() -> None:
    lag = LogLag()
    assert lag.lag_records({0: 5}) == {}, "its log's end is not known yet"
    lag.observe([0, 1, 2], {0: 5, 1: 9}, {0: 8, 1: 9, 2: 4}, NOW_MS)
    assert lag.lag_records({0: 5, 1: 9}) == {0: 3, 1: 0}
    assert lag.lag_records({0: 8, 1: 12}) == {0: 0, 1: 0}, "what was folded since"
    assert lag.lag_records({1: 9}) == {0: 3, 1: 0}, "a halted partition that is opened again is where it was"
    lag.observe([0, 1, 2], {1: 9}, {1: 11}, NOW_MS)
    assert lag.lag_records({1: 9}) == {0: 3, 1: 2}, "the end that did not answer is as before"


def test_a_partition_that_left_is_forgotten_with_its_next_observation() -> None:
    lag = LogLag()
    lag.observe([0, 1], {0: 5, 1: 5}, {0: 8, 1: 8}, NOW_MS)
    lag.observe([1], {1: 6}, {1: 8}, NOW_MS)
    assert lag.lag_records({1: 6}) == {1: 2}
    lag.observe([0, 1], {1: 6}, {0: 8, 1: 8}, NOW_MS)
    assert lag.lag_records({1: 6}) == {1: 2}, "where it is now is not known"


def test_a_lag_in_seconds_begins_with_the_first_record_that_waits() -> None:
    lag = LogLag()
    lag.observe([0, 1, 2, 3, 4], {0: 5, 1: 8, 2: 5, 3: 5, 4: 5}, dict.fromkeys(range(5), 8), NOW_MS - 1_000)
    lag.observe([0, 1, 2, 3, 4], {0: 5, 1: 8, 2: 5, 3: 5, 4: 5}, {1: 9}, NOW_MS)
    found = lag.lag_seconds(
        {0: 5, 1: 8, 2: 8, 3: 5, 4: 5},
        {0: NOW_MS - 7_000},
        {0: NOW_MS - 90_000, 1: NOW_MS - 90_000, 2: NOW_MS - 90_000, 3: NOW_MS - 3_000, 4: 0},
        NOW_MS,
    )
    assert found == {
        0: 7.0,  # it was fetched
        1: 1.0,  # not fetched, but the partition was level with its log a second ago
        2: 0.0,
        3: 3.0,  # appended after the last record that was folded
        4: 0.0,  # nothing is known of it
    }
    assert lag.lag_seconds({0: 5}, {0: NOW_MS + 5}, {}, NOW_MS)[0] == 0.0, "the broker's clock may be ahead"
