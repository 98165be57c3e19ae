"""The Kafka clients' shared configuration."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.settings.env_settings import RereadFile


def test_all_clients_share_the_servers_and_log_nothing_by_themselves() -> None:
    assert KafkaSettings(bootstrap_servers="a:1,b:2").client_config() == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "PLAINTEXT",
        "metadata.recovery.strategy": "none",
        "reconnect.backoff.max.ms": 500,
        "socket.timeout.ms": 10_000,
        "socket.connection.setup.timeout.ms": 10_000,
        "log_level": 0,
    }


def test_credentials_are_configured_only_if_they_are_set() -> None:
    settings = KafkaSettings(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="agent",
        sasl_password=SecretStr("secret"),
        ssl_ca_location="ca.pem",
    )
    added = settings.client_config().items() - KafkaSettings().client_config().items()
    assert dict(added) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "agent",
        "sasl.password": "secret",
        "ssl.ca.location": "ca.pem",
    }


@pytest.mark.parametrize("written", ["sasl_ssl", "SASL_SSL", "Sasl_Ssl", "sasl-ssl", " sasl_ssl "])
def test_protocols_and_mechanisms_are_named_in_any_case(written: str) -> None:
    settings = KafkaSettings.from_env(
        {"SESSIONARY_SECURITY_PROTOCOL": written, "SESSIONARY_SASL_MECHANISM": "scram-sha-512"}
    )
    assert settings.security_protocol == "SASL_SSL"
    assert settings.client_config()["security.protocol"] == "SASL_SSL"
    assert settings.client_config()["sasl.mechanism"] == "SCRAM-SHA-512"


def test_an_unknown_protocol_and_a_missing_mechanism_are_named() -> None:
    with pytest.raises(SettingsError, match=r"SESSIONARY_SECURITY_PROTOCOL: .*'PLAINTEXT'"):
        KafkaSettings.from_env({"SESSIONARY_SECURITY_PROTOCOL": "TLS"})
    with pytest.raises(SettingsError, match=r"SESSIONARY_SASL_MECHANISM: .* SASL_SSL needs a mechanism"):
        KafkaSettings.from_env({"SESSIONARY_SECURITY_PROTOCOL": "sasl_ssl"})


def test_settings_of_librdkafka_reach_every_client() -> None:
    settings = KafkaSettings.from_env(
        {"SESSIONARY_KAFKA_SSL_CERTIFICATE_LOCATION": "agent.pem", "SESSIONARY_KAFKA_SSL_KEY_PASSWORD": "s3cret"}
    )
    assert settings.client_config().items() - KafkaSettings().client_config().items() == {
        ("ssl.certificate.location", "agent.pem"),
        ("ssl.key.password", "s3cret"),
    }
    assert settings.reader_config_of("group")["ssl.key.password"] == "s3cret"
    assert "s3cret" not in repr(settings)


def test_a_wrong_setting_of_librdkafka_is_named_by_its_variable_and_without_its_value() -> None:
    environ = {
        "SESSIONARY_KAFKA_SSL_CERTIFICAT_LOCATION": "value-1",
        "SESSIONARY_KAFKA_ENABLE_IDEMPOTENCE": "false",
        "SESSIONARY_KAFKA_ENABLE_SSL_CERTIFICATE_VERIFICATION": "value-2",
    }
    with pytest.raises(SettingsError) as raised:
        KafkaSettings.from_env(environ)
    assert str(raised.value).split("; ") == [
        "SESSIONARY_KAFKA_ENABLE_IDEMPOTENCE: enable.idempotence cannot be set: exactly-once processing and the order "
        "of events depend on it",
        "SESSIONARY_KAFKA_ENABLE_SSL_CERTIFICATE_VERIFICATION: librdkafka accepts no such value of "
        "enable.ssl.certificate.verification",
        "SESSIONARY_KAFKA_SSL_CERTIFICAT_LOCATION: librdkafka has no setting ssl.certificat.location",
    ]


def test_settings_of_librdkafka_that_need_another_one_are_named_together() -> None:
    keystore = {"SESSIONARY_KAFKA_SSL_KEYSTORE_LOCATION": "worker.p12"}
    with pytest.raises(SettingsError, match=r"^SESSIONARY_KAFKA_SSL_KEYSTORE_LOCATION: .*`?ssl.keystore.password"):
        KafkaSettings.from_env(keystore)
    KafkaSettings.from_env({**keystore, "SESSIONARY_KAFKA_SSL_KEYSTORE_PASSWORD": "s3cret"})


def test_a_file_is_read_once_per_change_and_until_it_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "number"
    file = RereadFile(path, int)
    with pytest.raises(FileNotFoundError):
        file.read_if_changed()
    path.write_bytes(b"7")
    assert [file.read_if_changed(), file.read_if_changed()] == [7, None]
    path.write_bytes(b"seven")
    for _ in range(2):
        with pytest.raises(ValueError, match="seven"):
            file.read_if_changed()
    path.write_bytes(b"0")
    assert [file.read_if_changed(), file.read_if_changed()] == [0, None]
