"""Requests against the counts of transactions; `tests/integration` has the servers."""

from sessionary.sinks.integrity.landed_ends import EndFault, without_dismissed
from sessionary.sinks.integrity.topic_counts import TransactionId, WrittenCount, find_count_faults


def faults_of(wanted: dict[TransactionId, int], found: dict[TransactionId, int]) -> list[EndFault]:
    """Transaction n judged the offsets 10 n to 10 n + 9."""
    counts = {place: WrittenCount(records, 10 * place[1], 10 * place[1] + 9) for place, records in wanted.items()}
    return list(find_count_faults("cleanup", counts, found))


def test_each_partition_s_missing_and_doubled_records_are_summed() -> None:
    wanted = {(0, 1): 1, (0, 2): 3, (0, 3): 1, (1, 1): 2, (1, 2): 1, (2, 5): 0, (2, 6): 1}
    found = {(0, 1): 1, (0, 2): 1, (1, 1): 5, (1, 2): 1, (2, 5): 2}
    assert faults_of(wanted, found) == [
        EndFault("cleanup_missing", 0, 3, 20, 39),
        EndFault("cleanup_doubled", 1, 3, 10, 19),
        EndFault("cleanup_doubled", 2, 2, 50, 59),
        EndFault("cleanup_missing", 2, 1, 60, 69),
    ]


def test_what_is_counted_and_there_is_no_fault_and_other_transactions_are_not_compared() -> None:
    assert faults_of({(0, 1): 1, (0, 2): 0}, {(0, 1): 1, (0, 3): 7, (4, 1): 1}) == []


def test_a_dismissed_fault_covers_those_within_it_and_none_that_grew() -> None:
    dismissed = [{"fault": "cleanup_missing", "partition": 1, "rows": 2, "first": 10, "last": 39}]
    fault = EndFault("cleanup_missing", 1, 2, 10, 39)
    covered = [fault, fault._replace(rows=1), fault._replace(first_offset=20, last_offset=29)]
    others = [
        fault._replace(rows=3),
        fault._replace(first_offset=9),
        fault._replace(last_offset=40),
        fault._replace(partition=2),
        fault._replace(fault="tasks_missing"),
    ]
    assert without_dismissed([*covered, *others], lambda _: dismissed) == others
    assert without_dismissed(others, lambda _: []) == others
