"""`sessionary spool drain` and the replay of orphans, against a real broker."""

import json
import time
from pathlib import Path

import pytest

from sessionary.infra.cli.app import run
from sessionary.producers import ProducerSettings
from sessionary.producers.delivery.spool.segment import Frame
from sessionary.producers.delivery.spool.spool import Spool
from sessionary.producers.testing import memory_client
from sessionary.schemas.codec import Event
from sessionary.schemas.settings import KafkaSettings
from tests.support.pipelines import set_environment
from tests.support.reading import read_events


def leave_events(folder: Path, name: str, events: int) -> list[str]:
    """Leave events of a session as a process that was killed; return their ids in order."""
    client, memory = memory_client()
    session = client.session(user_id="u")
    for _ in range(events):
        session.activity("work", "x" * 200)
    records = memory.records()
    own = Spool(folder, name, 1 << 20)
    now_ms = time.time_ns() // 1_000_000
    for record in records:
        own.append_frame(Frame(now_ms, record.key, record.traceparent, record.value), None)
    own.abandon()
    client.close()
    return [record.event_id for record in records]


def test_drain_sends_what_dead_processes_left_and_says_so(
    kafka: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = ProducerSettings(**{**kafka.model_dump(), "spool_dir": tmp_path / "spool"})
    set_environment(monkeypatch, settings)
    left = leave_events(settings.spool_folder, "dead", 300)
    living = Spool(settings.spool_folder, "living", 1 << 20)
    living.close()
    assert run(["spool", "drain", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"sent": len(left), "expired": 0, "failed": 0, "damaged": 0, "left": 0}
    assert "sent" in err
    found = [event.envelope.event_id for event in read_events(kafka) if isinstance(event, Event)]
    assert found == left
    assert list(settings.spool_folder.iterdir()) == []
