"""The example of a durable run, in memory."""

import pytest

from examples.durable_run.agent import answer_ticket
from sessionary.producers.testing import memory_client


def test_the_example_sends_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="ada") as session:
        assert [answer_ticket(session, "ticket-1") for _ in range(2)] == ["#ops-1", "#ops-1"]
    assert capsys.readouterr().out == "sent to #ops no network: restart the router\n"
    assert memory.rejections() == []
