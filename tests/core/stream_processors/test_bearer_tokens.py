"""Tokens of OAUTHBEARER for the group's member."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.security import BearerTokens
from tests.support.certificates import CertificateAuthority
from tests.support.https_server import HttpsServer
from tests.support.token_endpoint import TokenEndpoint


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    serving = TokenEndpoint()
    yield serving
    serving.close()


def _claims(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return claims


def test_a_token_is_asked_for_once_and_serves_many_connections(endpoint: TokenEndpoint) -> None:
    tokens = BearerTokens({**endpoint.options("worker"), "sasl.oauthbearer.scope": "events"})

    async def connect_twice() -> list[str]:
        return [await tokens.token(), await tokens.token()]

    first, second = asyncio.run(connect_twice())
    assert first == second
    assert _claims(first)["sub"] == "worker"
    assert _claims(first)["scope"] == ["events"]
    assert endpoint.asked == ["worker"]


def test_a_token_is_renewed_before_it_expires(endpoint: TokenEndpoint) -> None:
    endpoint.life_s = -1.0  # over at once
    tokens = BearerTokens(endpoint.options("worker"))

    async def connect_twice() -> None:
        await tokens.token()
        await tokens.token()

    asyncio.run(connect_twice())
    assert endpoint.asked == ["worker", "worker"]


def test_a_rejected_client_and_a_dead_endpoint_are_errors_of_the_connection(endpoint: TokenEndpoint) -> None:
    wrong = {**endpoint.options("worker"), "sasl.oauthbearer.client.secret": "wr0ng"}
    with pytest.raises(KafkaConnectionError, match="answers 401") as raised:
        asyncio.run(BearerTokens(wrong).token())
    assert "wr0ng" not in str(raised.value)
    dead = {**endpoint.options("worker"), "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"}
    with pytest.raises(KafkaConnectionError, match=r"no token from http://127\.0\.0\.1:1/token"):
        asyncio.run(BearerTokens(dead).token())


def test_extensions_are_sent_with_either_method(endpoint: TokenEndpoint) -> None:
    oidc = {**endpoint.options("worker"), "sasl.oauthbearer.extensions": "cluster=c1,pool=p1"}
    assert BearerTokens(oidc).extensions() == {"cluster": "c1", "pool": "p1"}
    unsecured = {
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=worker lifeSeconds=60 scope=a,b extension_cluster=c1",
    }
    tokens = BearerTokens(unsecured)
    assert tokens.extensions() == {"cluster": "c1"}
    claims = _claims(asyncio.run(tokens.token()))
    assert (claims["sub"], claims["scope"]) == ("worker", ["a", "b"])
    assert claims["exp"] - claims["iat"] == 60


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "authority")


@pytest.fixture
def secured_options(authority: CertificateAuthority) -> Iterator[dict[str, str]]:
    """Settings for an endpoint over HTTPS, without its authority."""
    serving = HttpsServer(authority.issue("server"), b'{"access_token": "t0ken"}')
    yield {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "worker",
        "sasl.oauthbearer.token.endpoint.url": serving.url,
    }
    serving.close()


def test_the_endpoint_s_authority_is_a_file_or_a_text_and_is_read_once(
    secured_options: dict[str, str], authority: CertificateAuthority
) -> None:
    text = authority.file.read_text()
    all_tokens = [
        BearerTokens({**secured_options, **trusted})
        for trusted in (
            {"https.ca.location": str(authority.file)},
            {"https.ca.pem": text},
            {"https.ca.pem": text.replace("\n", "\\n")},
        )
    ]
    authority.file.unlink()  # the loop of a running worker reads no file
    for tokens in all_tokens:
        assert asyncio.run(tokens.token()) == "t0ken"


def test_the_endpoint_s_authority_may_be_the_system_s_or_in_a_folder(
    secured_options: dict[str, str], tmp_path: Path
) -> None:
    for authority in ("probe", str(tmp_path)):
        with pytest.raises(KafkaConnectionError, match="ClientConnectorCertificateError"):
            asyncio.run(BearerTokens({**secured_options, "https.ca.location": authority}).token())


@pytest.mark.parametrize(("name", "value"), [("location", "/nowhere.pem"), ("pem", "no certificate")])
def test_an_authority_that_cannot_be_read_is_named_at_the_start(
    secured_options: dict[str, str], name: str, value: str
) -> None:
    with pytest.raises(SettingsError, match=f"^SESSIONARY_KAFKA_HTTPS_CA_{name.upper()}: "):
        BearerTokens({**secured_options, f"https.ca.{name}": value})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "METHOD: "),
        ({"sasl.oauthbearer.method": "oidc"}, "CLIENT_ID is not set"),
        (
            {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": "worker"},
            "TOKEN_ENDPOINT_URL is not set",
        ),
        (
            {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "worker",
                "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
                "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            },
            "GRANT_TYPE: ",
        ),
        (
            {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.credentials.client.id": "worker",
                "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
                "sasl.oauthbearer.assertion.file": "a.jwt",
            },
            "ASSERTION_FILE: ",
        ),
    ],
)
def test_what_is_missing_or_cannot_be_followed_names_its_variable(options: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=f"^SESSIONARY_KAFKA_SASL_OAUTHBEARER_{named}"):
        BearerTokens(options)
