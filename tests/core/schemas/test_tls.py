"""Clients over HTTPS: each believes the authority of its setting, and no other."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.settings import OperatorSettings
from sessionary.producers import ProducerSettings
from sessionary.producers.control.http_control import HttpControl
from sessionary.schemas.codec.registry import ConfluentRegistry, open_registry_client
from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.schemas.tls import context_for, pem_context, trusting_context
from sessionary.sinks.clickhouse.connection import connect
from sessionary.sinks.errors import OperatorError, Transient
from tests.support.certificates import CertificateAuthority
from tests.support.https_server import HttpsServer

_NAME_HASH = "f20e0b1e"  # of the test authority's name, by `openssl x509 -subject_hash`


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: CertificateAuthority) -> Iterator[HttpsServer]:
    serving = HttpsServer(authority.issue("server"), b"{}")
    yield serving
    serving.close()


def test_a_file_that_holds_no_certificates_is_named_by_its_variable(tmp_path: Path) -> None:
    for text in (None, "no certificate"):
        path = tmp_path / "ca.pem"
        if text is not None:
            path.write_text(text)
        with pytest.raises(SettingsError, match=r"^SESSIONARY_X: .*ca\.pem is no readable file"):
            trusting_context("SESSIONARY_X", str(path))


def test_a_folder_of_authorities_and_the_system_s_are_accepted(
    server: HttpsServer, authority: CertificateAuthority, tmp_path: Path
) -> None:
    context = context_for("HTTPS://host", "SESSIONARY_X", str(authority.file))
    assert context is not None
    (name,) = (each["subject"] for each in context.get_ca_certs())
    folder = tmp_path / "authorities"
    folder.mkdir()
    (folder / f"{_NAME_HASH}.0").write_bytes(authority.file.read_bytes())
    by_folder = context_for(server.url, "SESSIONARY_X", str(folder))
    with urllib.request.urlopen(server.url, context=by_folder) as answer:
        assert answer.status == 200
    assert by_folder is not None
    assert [each["subject"] for each in by_folder.get_ca_certs()] == [name]
    for system in (None, "probe"):
        context = context_for(server.url, "SESSIONARY_X", system)
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(server.url, context=context)


def test_only_https_needs_a_context() -> None:
    for url in (None, "http://host", "https.example"):
        assert context_for(url, "SESSIONARY_X", "/nowhere.pem") is None
    with pytest.raises(SettingsError, match=r"^SESSIONARY_X: /nowhere\.pem is no readable file"):
        context_for("https://host", "SESSIONARY_X", "/nowhere.pem")


def test_authorities_may_be_a_text(server: HttpsServer, authority: CertificateAuthority) -> None:
    text = authority.file.read_text()
    for pem in (text, text.replace("\n", "\\n")):
        with urllib.request.urlopen(server.url, context=pem_context("SESSIONARY_X", pem)) as answer:
            assert answer.status == 200
    with pytest.raises(SettingsError, match=r"^SESSIONARY_X: it holds no certificates") as raised:
        pem_context("SESSIONARY_X", "s3cret")
    assert "s3cret" not in str(raised.value)


def test_clickhouse_is_asked_by_its_authority(server: HttpsServer, authority: CertificateAuthority) -> None:
    server.answer = b"26.9\n"
    settings: dict[str, Any] = {"clickhouse_url": server.url, "clickhouse_password": "s3cret"}
    with pytest.raises(Unavailable, match="certificate verify failed"):
        ClickHouseClient(ClickHouseSettings.model_validate(settings)).server_version()
    settings["clickhouse_ca_location"] = str(authority.file)
    assert ClickHouseClient(ClickHouseSettings.model_validate(settings)).server_version() == "26.9"
    assert server.asked[-1]["x-clickhouse-key"] == "s3cret"


def test_the_sinks_driver_believes_the_authority_too(server: HttpsServer, authority: CertificateAuthority) -> None:
    settings: dict[str, Any] = {"clickhouse_url": server.url}
    with pytest.raises(Transient):
        connect(ClickHouseSettings.model_validate(settings), 5)
    assert server.asked == []
    settings["clickhouse_ca_location"] = str(authority.file)
    with pytest.raises((Transient, OperatorError)):  # the server is no ClickHouse, but it was asked
        connect(ClickHouseSettings.model_validate(settings), 5)
    assert server.asked
    with pytest.raises(SettingsError, match=r"^SESSIONARY_CLICKHOUSE_CA_LOCATION: "):
        connect(ClickHouseSettings(clickhouse_url=server.url, clickhouse_ca_location="/nowhere.pem"), 5)


def test_commands_ask_the_control_api_by_its_authority(server: HttpsServer, authority: CertificateAuthority) -> None:
    server.answer = json.dumps({"partitions": []}).encode()
    fields: dict[str, Any] = {"control_url": server.url, "operator_token": "op"}
    with pytest.raises(Unavailable, match="certificate verify failed"):
        ControlApiClient(OperatorSettings.model_validate(fields)).list_partitions()
    fields["control_ca_location"] = str(authority.file)
    assert ControlApiClient(OperatorSettings.model_validate(fields)).list_partitions() == []


def test_the_client_asks_the_control_api_by_its_authority(
    server: HttpsServer, authority: CertificateAuthority, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"control_url": server.url, "api_token": "t", "spool_dir": tmp_path}
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        HttpControl(ProducerSettings.model_validate(fields)).fetch_session("s", None, 0.1)
    assert server.asked == []
    fields["control_ca_location"] = str(authority.file)
    with pytest.raises(Unavailable, match="not a session"):
        HttpControl(ProducerSettings.model_validate(fields)).fetch_session("s", None, 0.1)
    with pytest.raises(SettingsError, match=r"^SESSIONARY_CONTROL_CA_LOCATION: "):
        HttpControl(ProducerSettings.model_validate({**fields, "control_ca_location": "/nowhere.pem"}))


def test_the_registry_is_logged_in_to_by_its_authority(server: HttpsServer, authority: CertificateAuthority) -> None:
    server.answer = json.dumps({"schema": '"string"'}).encode()
    fields: dict[str, Any] = {
        "schema_registry_url": server.url,
        "schema_registry_username": "reader",
        "schema_registry_password": "s3cret",
    }
    with open_registry_client(KafkaSettings.model_validate(fields)) as client, pytest.raises(Unavailable):
        ConfluentRegistry(client).get_schema(7)
    fields["schema_registry_ca_location"] = str(authority.file)
    with open_registry_client(KafkaSettings.model_validate(fields)) as client:
        assert ConfluentRegistry(client).get_schema(7) == '"string"'
    assert server.asked[-1]["authorization"] == "Basic cmVhZGVyOnMzY3JldA=="
    with pytest.raises(SettingsError, match=r"^SESSIONARY_SCHEMA_REGISTRY_CA_LOCATION: "):
        open_registry_client(KafkaSettings(schema_registry_url=server.url, schema_registry_ca_location="/nowhere.pem"))
    with pytest.raises(SettingsError, match=r"^SESSIONARY_SCHEMA_REGISTRY_URL: "):
        open_registry_client(KafkaSettings(schema_registry_url="ftp://registry"))
