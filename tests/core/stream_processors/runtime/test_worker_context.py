"""How far apart transactions begin on a worker with many partitions."""

import pytest

from sessionary.stream_processors.runtime.worker_context import spread_interval_ms
from tests.core.stream_processors.runtime.owner_doubles import OwnerBench


@pytest.mark.parametrize(
    ("commit_interval_ms", "open_partitions", "wanted_ms"),
    [
        (30, 0, 30),
        (30, 1, 30),
        (30, 7, 30),
        (30, 8, 32),
        (30, 16, 64),
        (30, 25, 100),
        (30, 26, 100),
        (30, 256, 100),
        (200, 256, 200),
        (1, 1, 4),
        (0, 256, 0),
    ],
)
def test_transactions_are_further_apart_the_more_partitions_a_worker_has(
    commit_interval_ms: int, open_partitions: int, wanted_ms: int
) -> None:
    assert spread_interval_ms(commit_interval_ms, open_partitions) == wanted_ms


@pytest.mark.parametrize("open_partitions", range(8, 26))
def test_a_worker_begins_at_most_250_transactions_a_second_with_up_to_25_partitions(open_partitions: int) -> None:
    assert open_partitions * 1_000 / spread_interval_ms(30, open_partitions) <= 250


def test_the_interval_follows_the_partitions_that_are_open() -> None:
    context = OwnerBench().context
    assert context.commit_interval_s == 0.03
    context.open_partitions.update(range(20))
    assert context.commit_interval_s == 0.08
