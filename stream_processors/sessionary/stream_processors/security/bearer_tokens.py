"""Tokens of SASL mechanism OAUTHBEARER for the group's member, by the settings of librdkafka.

Two methods, as in librdkafka: `oidc` asks a token endpoint (OAuth 2.0 client credentials), and
unsecured tokens are for tests of a broker without an identity provider.
"""

import base64
import binascii
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings.librdkafka_options import option_variable
from sessionary.schemas.tls import context_for, pem_context

_PREFIX: Final = "sasl.oauthbearer."
_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 1 << 20
_RENEWED_AT: Final = 0.8  # of a token's life, as librdkafka renews
_LIFE_S: Final = 300.0  # if a token does not tell when it expires
_ALIASES: Final = {"client.credentials.client.id": "client.id", "client.credentials.client.secret": "client.secret"}
_OF_OIDC: Final = frozenset(
    (
        "method",
        "client.id",
        "client.secret",
        "scope",
        "extensions",
        "token.endpoint.url",
        "grant.type",
        "sub.claim.name",
    )
)


class BearerTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is not typed
    """Gives aiokafka a token for each connection; each serves until most of its life is over."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the settings and read the authorities; ask for nothing yet.

        Raises `SettingsError` that names a variable.
        """
        given = {
            _ALIASES.get(short, short): value
            for name, value in options.items()
            if name.startswith(_PREFIX) and (short := name.removeprefix(_PREFIX)) != "config"
        }
        self._oidc = given if given.get("method", "default").lower() == "oidc" else None
        self._config = dict(part.partition("=")[::2] for part in options.get(_PREFIX + "config", "").split())
        self._tls: ssl.SSLContext | None = None
        if self._oidc is not None:
            _check_oidc(self._oidc)
            self._tls = _endpoint_context(self._oidc["token.endpoint.url"], options)
        elif options.get("enable.sasl.oauthbearer.unsecure.jwt", "false").lower() not in ("true", "t", "1"):
            raise SettingsError(
                f"{option_variable(_PREFIX + 'method')}: OAUTHBEARER needs the method oidc and a token endpoint"
            )
        self._token = ""
        self._renewal_s = 0.0

    async def token(self) -> str:
        """Return a token. Raises `KafkaConnectionError` if the endpoint gives none."""
        if time.time() >= self._renewal_s:
            self._token = self._unsecured_token() if self._oidc is None else await self._ask_token(self._oidc)
            now_s = time.time()
            expiry_s = _expiry_s(self._token) or now_s + _LIFE_S
            self._renewal_s = now_s + _RENEWED_AT * (expiry_s - now_s)
        return self._token

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions of the settings."""
        if self._oidc is None:
            return {
                name.removeprefix("extension_"): value
                for name, value in self._config.items()
                if name.startswith("extension_")
            }
        pairs = (pair.partition("=") for pair in self._oidc.get("extensions", "").split(",") if pair)
        return {name.strip(): value for name, _, value in pairs}

    async def _ask_token(self, oidc: Mapping[str, str]) -> str:
        url, form = oidc["token.endpoint.url"], {"grant_type": "client_credentials"}
        if "scope" in oidc:
            form["scope"] = oidc["scope"]
        credentials = base64.b64encode(f"{oidc['client.id']}:{oidc.get('client.secret', '')}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}", "Accept": "application/json"}
        connector = TCPConnector(ssl=self._tls or True)
        try:
            async with (
                ClientSession(connector=connector, timeout=ClientTimeout(total=_TIMEOUT_S)) as session,
                session.post(url, data=form, headers=headers, allow_redirects=False) as answer,
            ):
                found: Any = json.loads(await answer.content.read(_ANSWER_BYTES_MAX))
                status = answer.status
        except (ClientError, TimeoutError, ValueError) as error:
            raise KafkaConnectionError(f"no token from {url}: {type(error).__name__}") from error
        token = found.get("access_token") if isinstance(found, dict) else None
        if status != 200 or not isinstance(token, str) or not token:
            raise KafkaConnectionError(f"no token from {url}: it answers {status}")
        return token

    def _unsecured_token(self) -> str:
        now_s, config = time.time(), self._config
        claims: dict[str, object] = {
            config.get("principalClaimName", "sub"): config.get("principal", ""),
            "iat": now_s,
            "exp": now_s + float(config.get("lifeSeconds", "3600")),
        }
        if scope := config.get("scope"):
            claims[config.get("scopeClaimName", "scope")] = scope.split(",")
        return f"{_encode_part({'alg': 'none'})}.{_encode_part(claims)}."


def _check_oidc(oidc: Mapping[str, str]) -> None:
    for name in ("client.id", "token.endpoint.url"):
        if not oidc.get(name):
            raise SettingsError(f"{option_variable(_PREFIX + name)} is not set: the method oidc needs it")
    if oidc.get("grant.type", "client_credentials").lower() != "client_credentials":
        raise SettingsError(
            f"{option_variable(_PREFIX + 'grant.type')}: a processor can join its group by client_credentials only"
        )
    for name in sorted(oidc.keys() - _OF_OIDC):
        raise SettingsError(f"{option_variable(_PREFIX + name)}: a processor's member of the group cannot follow it")


def _endpoint_context(url: str, options: Mapping[str, str]) -> ssl.SSLContext | None:
    if (pem := options.get("https.ca.pem")) is not None:
        return pem_context(option_variable("https.ca.pem"), pem)
    return context_for(url, option_variable("https.ca.location"), options.get("https.ca.location"))


def _encode_part(part: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _expiry_s(token: str) -> float | None:
    """Return when a JWT expires; None for another token, or one that does not tell."""
    try:
        part = token.split(".")[1]
        expiry = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"]
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return None
    return float(expiry) if isinstance(expiry, int | float) else None
