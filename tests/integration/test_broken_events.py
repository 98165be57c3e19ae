"""Broken records on a real broker, by a producer that reaches none at first."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sessionary.infra.demo import plan_runner
from sessionary.infra.demo.plan import BROKEN, make_plan
from sessionary.infra.demo.plan_runner import BrokenSender
from sessionary.infra.demo.runs import sample_runs
from sessionary.schemas.settings import KafkaSettings
from tests.support.reading import read_topic


def test_each_kind_of_broken_record_reaches_the_log_by_a_new_producer(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plan_runner, "_RENEW_S", 2.0)
    monkeypatch.setattr(plan_runner, "_SEND_S", 180.0)
    opened: list[str] = []

    def new_producer() -> Producer:
        if opened:  # the second one has all the time that it needs
            monkeypatch.setattr(plan_runner, "_RENEW_S", 600.0)
        opened.append(kafka.bootstrap_servers if opened else "127.0.0.1:1")
        return Producer({**kafka.client_config(), "bootstrap.servers": opened[-1]})

    sender = BrokenSender(kafka, tmp_path / "journal", new_producer=new_producer)
    session = make_plan(sample_runs(1), demo_id="d").sessions[0]
    for kind in BROKEN:
        sender.send_record(kind, session)
    sender.close()
    lines = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    stored = {(record.partition, record.offset) for record in read_topic(kafka, kafka.topics.events)}
    assert opened[1:] != []
    assert {(line["partition"], line["offset"]) for line in lines} <= stored
    assert len(lines) == sender.sent == sender.delivered == len(BROKEN) + 1  # the duplicate counts twice
