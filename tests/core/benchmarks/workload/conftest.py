"""A small workload for all tests of this folder."""

import pytest

from benchmarks.workload.events import Workload, agent_runs


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(agent_runs(), seed=1, concurrent=40)
