"""Stall detection: by partition, heartbeats included, and with growing patience."""

import json

from sessionary.producers.delivery.stall_watch import StallWatch


def statistics(**partitions: tuple[int, int]) -> str:
    """Statistics of topic `events`, by partition: acknowledged so far, waiting."""
    found = {
        name.lstrip("p"): {"acked_msgid": acknowledged, "msgq_cnt": 0, "xmit_msgq_cnt": waiting, "msgs_inflight": 0}
        for name, (acknowledged, waiting) in partitions.items()
    }
    return json.dumps({"topics": {"events": {"partitions": found}, "other": {"partitions": {}}}})


def test_a_partition_that_acknowledges_nothing_is_found_although_others_go_on() -> None:
    watch = StallWatch("events")
    for second in range(0, 15, 3):
        assert watch.find_stall(statistics(p0=(second, 1), p1=(7, 2)), second) == 0
    assert watch.find_stall(statistics(p0=(15, 1), p1=(7, 2)), 15) == 15


def test_progress_and_silence_are_no_stall() -> None:
    watch = StallWatch("events")
    for second in range(0, 300, 3):
        assert watch.find_stall(statistics(p0=(second // 9, 5), p1=(7, 0)), second) == 0
    assert watch.find_stall("{}", 300) == 0


def test_records_whose_partition_is_not_known_yet_count() -> None:
    watch = StallWatch("events")
    found = {"-1": {"acked_msgid": 0, "msgq_cnt": 3, "xmit_msgq_cnt": 0, "msgs_inflight": 0}}
    text = json.dumps({"topics": {"events": {"partitions": found}}})
    assert [watch.find_stall(text, second) for second in (0, 14, 15)] == [0, 0, 15]


def test_the_next_stall_takes_twice_as_long_until_all_is_well_again() -> None:
    watch, now_s, stalls = StallWatch("events"), 0, list[float]()
    while len(stalls) < 7:
        now_s += 1
        if stalled_s := watch.find_stall(statistics(p0=(now_s, 1), p1=(7, 2)), now_s):
            stalls.append(stalled_s)
    assert stalls == [15, 30, 60, 120, 240, 240, 240]
    for acknowledged in (7, 8, 9):
        watch.find_stall(statistics(p0=(now_s, 1), p1=(acknowledged, 2)), now_s)
    assert watch.find_stall(statistics(p1=(9, 2)), now_s + 14) == 0
    assert watch.find_stall(statistics(p1=(9, 2)), now_s + 15) == 15
