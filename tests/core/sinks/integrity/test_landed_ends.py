"""A sink's report of where it stands: nothing ends it but its stop."""

from pathlib import Path

import clickhouse_connect
import pytest

from sessionary.schemas.errors import SettingsError
from sessionary.sinks.integrity import landed_ends
from sessionary.sinks.integrity.landed_ends import EndReport, LandedEnd
from sessionary.sinks.settings import SinkSettings
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

    def read_ends(_settings: SinkSettings, kind: str) -> list[LandedEnd]:
        reads.append(kind)
        return [LandedEnd(3, 5, 0, 7, 4)]

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
