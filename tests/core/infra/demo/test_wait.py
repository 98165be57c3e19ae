"""Waiting ends by what the pipeline reports."""

import pytest

from sessionary.infra.demo.wait import PipelineStatus, wait_until_done


def test_waiting_ends_when_all_is_done_or_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("sessionary.infra.demo.wait.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("sessionary.infra.demo.wait.time.sleep", lambda s: clock.__setitem__(0, clock[0] + s))
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
