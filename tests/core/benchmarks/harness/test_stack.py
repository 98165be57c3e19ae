"""A pipeline is dropped when its transactions have ended."""

from collections.abc import Iterable

import pytest

from benchmarks.harness import stack
from benchmarks.harness.stack import wait_transactions_end
from sessionary.schemas.kafka.log_progress import LogEnd
from sessionary.schemas.settings import KafkaSettings

KAFKA = KafkaSettings(bootstrap_servers="127.0.0.1:1", partitions=2)


class FakeEnds:
    """Logs of which the audit topic has an open transaction until the third question."""

    asked: list[str] = []

    def __init__(self, _: KafkaSettings, *, committed_only: bool) -> None:
        self._committed_only = committed_only

    def ask_ends(self, topic: str, partitions: Iterable[int], _: float) -> dict[int, LogEnd]:
        if not self._committed_only:
            return {partition: LogEnd(10, 0) for partition in partitions}
        self.asked.append(topic)
        is_open = topic == KAFKA.topics.audit and self.asked.count(topic) < 3
        return {partition: LogEnd(7 if is_open else 10, 0) for partition in partitions}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(stack, "LogEndClient", FakeEnds)
    monkeypatch.setattr(stack, "_LOOK_S", 0.0)
    monkeypatch.setattr(FakeEnds, "asked", [])
    return FakeEnds.asked


def test_a_topic_is_asked_again_until_its_transactions_have_ended(asked: list[str]) -> None:
    wait_transactions_end(KAFKA)
    assert asked.count(KAFKA.topics.audit) == 3
    assert set(asked) == set(KAFKA.topics)
    assert len(asked) == len(KAFKA.topics) + 2


def test_the_waiting_ends_after_its_time(asked: list[str]) -> None:
    wait_transactions_end(KAFKA, timeout_s=0.0)
    assert not asked
