"""Five minutes of chaos with late requests in its deck, on three brokers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.one_minute import RUN_S_MAX, run_chaos
from tests.chaos.test_late_requests import MINUTES, SEEDS, check_late_requests
from tests.support.processes import Processes


@pytest.mark.timeout(RUN_S_MAX + 60 * MINUTES + 60)
@pytest.mark.parametrize("seed", SEEDS)
def test_requests_that_come_late_to_three_brokers_lose_and_double_nothing(
    seed: int, processes: Processes, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("seed", seed)
    check_late_requests(run_chaos(processes, tmp_path, seed, "--brokers", "3", minutes=MINUTES))
