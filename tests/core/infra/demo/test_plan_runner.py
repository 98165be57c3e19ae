"""The sender of broken records: what is acknowledged, and a producer that has lost its broker."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Message, Producer

from sessionary.infra.demo.plan import make_plan
from sessionary.infra.demo.plan_runner import BrokenSender
from sessionary.infra.demo.runs import sample_runs
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.settings import KafkaSettings


class FakeProducer:
    """Acknowledges every record, or none; each `poll` takes its whole time."""

    def __init__(self, clock: "FakeClock", *, is_lost: bool) -> None:
        self._clock, self._is_lost = clock, is_lost
        self.sent: list[bytes] = []
        self._callbacks: list[Callable[[Any, Any], None]] = []

    def __len__(self) -> int:
        return 0 if self._is_lost else len(self._callbacks)

    def produce(
        self, topic: str, value: bytes, key: bytes, *, headers: object, on_delivery: Callable[[Any, Any], None]
    ) -> None:
        self.sent.append(value)
        self._callbacks.append(on_delivery)

    def poll(self, timeout_s: float) -> None:
        self._clock.now_s += timeout_s
        while self._callbacks and not self._is_lost:
            self._callbacks.pop()(None, Message("events", 2, 7))

    def purge(self, **options: bool) -> None:
        """Report nothing: `poll` of a lost producer never does."""


class FakeClock:
    """Time that producers move."""

    now_s = 1_000.0

    def read_s(self) -> float:
        return self.now_s


class SenderRig:
    """A sender whose first `lost_count` producers have lost their broker."""

    def __init__(self, folder: Path, lost_count: int) -> None:
        self.clock, self.producers = FakeClock(), list[FakeProducer]()
        self.journal = folder / "journal.ndjson"

        def new_producer() -> Producer:
            self.producers.append(FakeProducer(self.clock, is_lost=len(self.producers) < lost_count))
            return cast(Producer, self.producers[-1])

        self.sender = BrokenSender(KafkaSettings(), self.journal, new_producer=new_producer, clock_s=self.clock.read_s)
        self.session = make_plan(sample_runs(1), demo_id="d").sessions[0]

    def journal_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.journal.read_text().splitlines()]


def test_each_acknowledged_record_has_a_line_in_the_journal(tmp_path: Path) -> None:
    rig = SenderRig(tmp_path, lost_count=0)
    rig.sender.send_record("duplicate", rig.session)
    rig.sender.send_record("wrong_bytes", rig.session)
    rig.sender.close()
    assert (rig.sender.sent, rig.sender.delivered) == (3, 3)
    first, again, unread = rig.journal_lines()
    assert first == again
    assert (first["event_type"], first["offset"], first["error"]) == ("progress_reported", 7, None)
    assert unread["event_id"] == ""


def test_a_producer_that_acknowledges_nothing_is_replaced_after_ten_seconds(tmp_path: Path) -> None:
    rig = SenderRig(tmp_path, lost_count=1)
    rig.sender.send_record("duplicate", rig.session)
    rig.sender.close()
    lost, renewed = rig.producers
    assert lost.sent == renewed.sent
    assert 10 <= rig.clock.now_s - 1_000 < 11
    assert (rig.sender.sent, rig.sender.delivered) == (2, 2)
    assert len(rig.journal_lines()) == 2


def test_a_record_that_was_given_up_is_acknowledged_later_by_another_producer(tmp_path: Path) -> None:
    rig = SenderRig(tmp_path, lost_count=3)
    with pytest.raises(Unavailable, match="within 30 s"):
        rig.sender.send_record("wrong_bytes", rig.session)
    assert (rig.sender.sent, rig.sender.delivered) == (1, 0)
    rig.clock.now_s += 10
    for _ in range(2):
        rig.sender.poll_acknowledgements()
    assert (rig.sender.sent, rig.sender.delivered) == (1, 1)
    rig.sender.close()
    rig.sender.poll_acknowledgements()  # has no effect
