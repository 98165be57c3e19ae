"""Waiting ends by what the pipeline reports."""

from typing import Any

import pytest

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.demo.wait import PatientClickHouse, PipelineStatus, wait_until_done
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.module_time import set_module_time


def _set_clock(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    """Let the module that waits have this clock, of one number in s, and no other pause."""
    set_module_time(
        monkeypatch,
        "sessionary.infra.demo.wait",
        monotonic=lambda: clock[0],
        sleep=lambda s: clock.__setitem__(0, clock[0] + s),
    )


def test_waiting_ends_when_all_is_done_or_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    _set_clock(monkeypatch, clock)
    states = iter([1, 2, 3])
    said: list[str] = []

    def moving() -> PipelineStatus:
        state = next(states)
        return PipelineStatus(state == 3, state, f"at {state}")

    assert wait_until_done(moving, 1.0, said.append)
    assert said == ["at 1", "at 2"]
    began = clock[0]
    assert not wait_until_done(lambda: PipelineStatus(done=False, state="same", text=""), 5.0, said.append)
    assert 5.0 < clock[0] - began < 7.0


def test_the_time_in_which_the_server_is_away_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    _set_clock(monkeypatch, clock)
    answers = iter([False, False, True])

    def slow() -> PipelineStatus:
        clock[0] += 30.0
        return PipelineStatus(next(answers), "same", "")

    assert wait_until_done(slow, 5.0, lambda _text: None)


def test_a_query_waits_for_a_server_that_is_away_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = [0.0], list[str]()
    _set_clock(monkeypatch, clock)
    back_at_s = 20.0

    def fetch_rows(_self: ClickHouseClient, _sql: str, **_parameters: Any) -> list[Row]:
        if clock[0] < back_at_s:
            raise Unavailable("no server", 1.0)
        return [{"n": 1}]

    monkeypatch.setattr(ClickHouseClient, "fetch_rows", fetch_rows)
    client = PatientClickHouse(ClickHouseSettings.from_env({}), said.append)
    assert client.fetch_rows("SELECT 1") == [{"n": 1}]
    assert 20.0 <= clock[0] < 21.0
    assert set(said) == {"waiting: no server; try again in 1 s"}
    back_at_s = 1e9
    with pytest.raises(Unavailable):
        client.fetch_rows("SELECT 1")
    assert 140.0 <= clock[0] < 142.0
