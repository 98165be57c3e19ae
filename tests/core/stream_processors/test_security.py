"""The group member's TLS and SASL, against a TLS server that asks for certificates."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faust
import pytest
from pydantic import SecretStr

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.security import member_credentials
from sessionary.stream_processors.settings import ProcessorSettings
from tests.support.certificates import Certificate, CertificateAuthority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("certificates"))


@contextmanager
def _asking_server(authority: CertificateAuthority, server: Certificate) -> Iterator[int]:
    """Serve TLS connections of clients with a certificate of the authority; send each its name."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(server.certificate, server.key)

    def serve_each(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) as secured:
                    subject: Any = (secured.getpeercert() or {})["subject"]
                    secured.sendall(subject[0][0][1].encode())
            except OSError:
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve_each, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def _name_seen(port: int, context: ssl.SSLContext, host: str = "127.0.0.1") -> str:
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.recv(100).decode()


def _settings(authority: CertificateAuthority | None, protocol: str = "ssl", **more: Any) -> ProcessorSettings:
    place = str(authority.file) if authority is not None else None
    return ProcessorSettings.model_validate({"security_protocol": protocol, "ssl_ca_location": place, **more})


def _certificate_options(made: Certificate) -> dict[str, str]:
    return {"ssl.certificate.location": str(made.certificate), "ssl.key.location": str(made.key)}


def test_the_member_shows_its_certificate_from_files_and_from_texts(authority: CertificateAuthority) -> None:
    made, locked = authority.issue("worker"), authority.issue("locked", password="s3cret")
    texts = {
        "ssl.certificate.pem": made.certificate.read_text().replace("\n", "\\n"),
        "ssl.key.pem": made.key.read_text(),
        "ssl.ca.pem": authority.file.read_text(),
    }
    with _asking_server(authority, authority.issue("broker")) as port:
        for settings, name in (
            (_settings(authority, librdkafka=_certificate_options(made)), "worker"),
            (_settings(None, librdkafka=texts), "worker"),
            (_settings(authority, librdkafka={**_certificate_options(locked), "ssl.key.password": "s3cret"}), "locked"),
        ):
            credentials = member_credentials(settings)
            assert isinstance(credentials, faust.SSLCredentials)
            assert _name_seen(port, credentials.context) == name


def test_the_member_believes_no_other_authority_and_no_other_host_unless_asked(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    made = _certificate_options(authority.issue("worker"))
    foreign = CertificateAuthority(tmp_path)
    with _asking_server(authority, authority.issue("broker")) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            _name_seen(port, member_credentials(_settings(foreign, librdkafka=made)).context)
        with pytest.raises(ssl.SSLCertVerificationError):
            _name_seen(port, member_credentials(_settings(authority, librdkafka=made)).context, "broker.example")
        any_host = {**made, "ssl.endpoint.identification.algorithm": "none"}
        context = member_credentials(_settings(authority, librdkafka=any_host)).context
        assert _name_seen(port, context, "broker.example") == "worker"
        anything = {**made, "enable.ssl.certificate.verification": "false"}
        assert _name_seen(port, member_credentials(_settings(foreign, librdkafka=anything)).context) == "worker"


@pytest.mark.parametrize("protocol", ["sasl_ssl", "SASL_SSL"])
def test_a_protocol_in_any_case_gives_the_member_tls_and_credentials(protocol: str) -> None:
    credentials = member_credentials(
        _settings(
            None,
            protocol,
            sasl_mechanism="scram-sha-512",
            sasl_username="worker",
            sasl_password=SecretStr("s3cret"),
        )
    )
    assert isinstance(credentials, faust.SASLCredentials)
    assert (credentials.username, credentials.password) == ("worker", "s3cret")
    assert credentials.mechanism.value == "SCRAM-SHA-512"
    assert credentials.protocol.value == "SASL_SSL"
    assert credentials.ssl_context is not None


def test_plain_text_needs_no_credentials() -> None:
    assert member_credentials(_settings(None, "plaintext")) is None


def test_oauth_and_kerberos_are_the_member_s_too() -> None:
    oauth = {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": "principal=worker"}
    credentials = member_credentials(_settings(None, "sasl_plaintext", sasl_mechanism="oauthbearer", librdkafka=oauth))
    assert isinstance(credentials, faust.OAuthCredentials)
    assert credentials.protocol.value == "SASL_PLAINTEXT"
    assert asyncio.run(credentials.oauth_cb.token()).count(".") == 2
    kerberos = member_credentials(
        _settings(None, "sasl_ssl", sasl_mechanism="gssapi", librdkafka={"sasl.kerberos.service.name": "brokers"})
    )
    assert isinstance(kerberos, faust.GSSAPICredentials)
    assert kerberos.kerberos_service_name == "brokers"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ssl.certificate.location": "/nowhere.pem"}, "SESSIONARY_KAFKA_SSL_CERTIFICATE_LOCATION: No such file"),
        ({"ssl.crl.location": "/nowhere.pem"}, "SESSIONARY_KAFKA_SSL_CRL_LOCATION: No such file"),
        ({"ssl.cipher.suites": "none of them"}, "SESSIONARY_KAFKA_SSL_CIPHER_SUITES: "),
        ({"ssl.ca.pem": "no certificate"}, "SESSIONARY_KAFKA_SSL_CA_PEM: "),
        (
            {"ssl.keystore.location": "worker.p12", "ssl.keystore.password": "x"},
            "SESSIONARY_KAFKA_SSL_KEYSTORE_LOCATION: .* PEM",
        ),
    ],
)
def test_what_the_member_cannot_use_is_one_error_that_names_the_variable(options: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=f"^{named}"):
        member_credentials(_settings(None, librdkafka=options))


def test_an_encrypted_key_without_its_password_asks_on_no_terminal(authority: CertificateAuthority) -> None:
    locked = authority.issue("unopened", password="s3cret")
    with pytest.raises(SettingsError, match="SESSIONARY_KAFKA_SSL_KEY_PASSWORD"):
        member_credentials(_settings(authority, librdkafka=_certificate_options(locked)))


def test_an_authority_that_cannot_be_read_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^SESSIONARY_SSL_CA_LOCATION: No such file"):
        member_credentials(_settings(None, ssl_ca_location="/nowhere.pem"))


def test_a_mechanism_that_the_member_does_not_know_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"^SESSIONARY_SASL_MECHANISM: .* AWS-MSK-IAM"):
        member_credentials(_settings(None, "sasl_ssl", sasl_mechanism="AWS_MSK_IAM"))
