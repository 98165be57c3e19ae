"""A sink's report of where it stands: nothing ends it but its stop."""

import time
from pathlib import Path

import clickhouse_connect
import pytest
from confluent_kafka import KafkaError

from sessionary.schemas.errors import SettingsError
from sessionary.sinks.integrity import landed_ends
from sessionary.sinks.integrity.landed_ends import EndReport, LandedEnd, TimeLimit
from sessionary.sinks.settings import SinkSettings
from tests.core.sinks.integrity.fake_topics import FakeMessage, FakeTopics
from tests.support.certificates import CertificateAuthority
from tests.support.waiting import wait_until


class FakeClient:
    """A connection to ClickHouse that notes its statements."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def command(self, statement: str) -> None:
        self.statements.append(statement)

    def close(self) -> None:
        """Do nothing."""


def test_a_report_goes_on_once_the_authorities_file_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, reads = FakeClient(), list[str]()

    def read_ends(_settings: SinkSettings, kind: str, topic_id: str) -> list[LandedEnd]:
        reads.append(f"{kind} {topic_id}")
        return [LandedEnd(3, 5, 0, 7, 4), LandedEnd(4, 5, 0, 7, former_id="another-id")]

    monkeypatch.setattr(landed_ends, "EVERY_S", 0.01)
    monkeypatch.setattr(landed_ends, "ask_topic_id", lambda *_: "an-id")
    monkeypatch.setattr(landed_ends, "read_landed_ends", read_ends)
    monkeypatch.setattr(clickhouse_connect, "get_client", lambda **_: client)
    authority = CertificateAuthority(tmp_path)
    away = authority.file.rename(tmp_path / "away.pem")
    settings = SinkSettings(clickhouse_url="https://127.0.0.1:8443", clickhouse_ca_location=str(authority.file))
    report = EndReport("history", settings)
    with pytest.raises(SettingsError, match="SESSIONARY_CLICKHOUSE_CA_LOCATION"):
        report.report_once()
    report.start()
    try:
        wait_until(lambda: len(reads) >= 3, 30, "two more reports that fail")
        assert client.statements == []
        away.rename(authority.file)
        wait_until(lambda: client.statements, 30, "a report")
    finally:
        report.stop()
    assert "VALUES ('history', 'sessionary.sink.history', 3, 'an-id', 5, 0, 7, 4)" in client.statements[0]


def test_a_follower_s_earlier_end_is_not_the_end_of_a_log() -> None:
    topics, settings = FakeTopics(), SinkSettings()
    for number in (1, 2):
        topics.append("t", 1, (1, number), time.time())
    topics.answers = [[FakeMessage(("t", 1), 1, code=KafkaError._PARTITION_EOF)]]
    read = landed_ends._read_records(topics, "t", {1: 0}, {1: 2}, TimeLimit(settings, 10.0))  # type: ignore[arg-type]
    assert read.last == {1: 1}
