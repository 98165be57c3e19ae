"""The settings of the Faust app."""

from pathlib import Path

import pytest

from sessionary.stream_processors.faust_app import make_faust_app
from sessionary.stream_processors.settings import ProcessorSettings


@pytest.mark.parametrize(("session_timeout_ms", "answer_s"), [(6_000, 15.0), (30_000, 35.0)])
def test_a_silent_coordinator_is_given_up_soon_but_not_during_a_rebalance(
    session_timeout_ms: int, answer_s: float, tmp_path: Path
) -> None:
    app = make_faust_app(ProcessorSettings(session_timeout_ms=session_timeout_ms), str(tmp_path))
    assert app.conf.broker_request_timeout == answer_s
    assert app.conf.broker_request_timeout > app.conf.broker_rebalance_timeout


@pytest.mark.parametrize(("session_timeout_ms", "heartbeat_s"), [(1_000, 0.333), (6_000, 0.5), (30_000, 0.5)])
def test_a_worker_learns_within_half_a_second_that_its_group_rebalances(
    session_timeout_ms: int, heartbeat_s: float, tmp_path: Path
) -> None:
    """It is told in the answer to a heartbeat."""
    app = make_faust_app(ProcessorSettings(session_timeout_ms=session_timeout_ms), str(tmp_path))
    assert app.conf.broker_heartbeat_interval == heartbeat_s
