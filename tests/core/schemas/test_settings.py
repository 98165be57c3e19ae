"""The Kafka clients' shared configuration."""

from pydantic import SecretStr

from sessionary.schemas.settings import KafkaSettings


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
