"""Five minutes of chaos with late requests in its deck, on one broker; three more in another file.

A file's tests run one after another, and a part of the soak takes half an hour at most.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.one_minute import RUN_S_MAX, run_chaos
from tests.support.processes import Processes

LATE = "late requests"
MINUTES = 5
SEEDS = (21, 22, 23)


@pytest.mark.timeout(RUN_S_MAX + 60 * MINUTES + 60)
@pytest.mark.parametrize("seed", SEEDS)
def test_requests_that_come_late_lose_and_double_nothing(
    seed: int, processes: Processes, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("seed", seed)
    check_late_requests(run_chaos(processes, tmp_path, seed, minutes=MINUTES))


def check_late_requests(result: dict[str, object]) -> None:
    """Check that requests came late, ends of transactions among them."""
    outcomes = result["outcomes"]
    assert isinstance(outcomes, list)
    notes = [one["note"] for one in outcomes if one["kind"] == LATE]
    assert notes
    assert any("EndTxn late, INVALID_PRODUCER_EPOCH" in note for note in notes)
