"""A token that the control API refuses is known soon after the start."""

import threading
from pathlib import Path

import pytest

from sessionary.producers import AuthenticationFailed
from sessionary.producers.metrics import ClientMeter, Sample
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.fake_control import ControlRequest, ControlResponse, control_server
from tests.support.waiting import wait_until


@pytest.mark.parametrize("poll_interval_s", [0.0, 5.0, 3_600.0])
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_reported_and_counted_once_while_nothing_asks(
    status: int, poll_interval_s: float, closed_address: str, tmp_path: Path
) -> None:
    asked: list[ControlRequest] = []

    def answer(request: ControlRequest) -> ControlResponse:
        asked.append(request)
        return ControlResponse(status, {"detail": "the token is not known"})

    errors: list[Exception] = []
    with control_server(answer) as url:
        settings = new_settings(
            closed_address, tmp_path, control_url=url, api_token="wrong", poll_interval_s=poll_interval_s
        )
        with new_client(settings, errors) as client:
            # It is told a moment after it was counted.
            wait_until(lambda: any(isinstance(error, AuthenticationFailed) for error in errors), 60, "the report")
            assert client.counters.errors["control_authentication"] == 1
            refused = [error for error in errors if isinstance(error, AuthenticationFailed)]
            assert ["the token is not known" in str(error) for error in refused] == [True]
            assert "wrong" not in str(refused)
            samples = ClientMeter(client).read_samples()["sessionary_client_delivery_errors_total"]
            assert Sample("control_authentication", 1) in samples
    assert [request.authorization for request in asked] == ["Bearer wrong"]


@pytest.mark.parametrize("poll_interval_s", [0.0, 5.0])
@pytest.mark.parametrize("status", [404, 503, 200])
def test_any_other_answer_is_left_to_the_verb_that_waits_for_one(
    status: int, poll_interval_s: float, closed_address: str, tmp_path: Path
) -> None:
    asked = threading.Event()

    def answer(_: ControlRequest) -> ControlResponse:
        asked.set()
        return ControlResponse(status, {})

    errors: list[Exception] = []
    with control_server(answer) as url:
        settings = new_settings(closed_address, tmp_path, control_url=url, poll_interval_s=poll_interval_s)
        with new_client(settings, errors) as client:
            assert asked.wait(60)
            assert "control_authentication" not in client.counters.errors
    assert not [error for error in errors if "control API" in str(error)]
