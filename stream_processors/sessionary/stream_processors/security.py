"""The group member's TLS and SASL in Faust's terms, from the settings that librdkafka gets.

The member is aiokafka's, which knows no setting of librdkafka. A setting that secures a connection
and cannot be translated is an error: the member must not connect less safely than its fellows.
"""

import base64
import binascii
import json
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import faust
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from sessionary.schemas.errors import SettingsError, cause_text
from sessionary.schemas.settings.librdkafka_options import option_variable
from sessionary.schemas.tls import context_for, pem_context
from sessionary.stream_processors.settings import ProcessorSettings

# Tokens of SASL mechanism OAUTHBEARER for the group's member, by the settings of librdkafka.
#
# Two methods, as in librdkafka: `oidc` asks a token endpoint (OAuth 2.0 client credentials), and
# unsecured tokens are for tests of a broker without an identity provider.


_PREFIX: Final = "sasl.oauthbearer."
_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 1 << 20
_RENEWED_AT: Final = 0.8  # of a token's life, as librdkafka renews
_LIFE_S: Final = 300.0  # if a token does not say when it expires
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
    """Return when a JWT expires; None for another token, or a JWT without an expiry."""
    try:
        part = token.split(".")[1]
        expiry = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"]
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return None
    return float(expiry) if isinstance(expiry, int | float) else None


_PLAIN: Final = frozenset(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))
_TRANSLATED: Final = frozenset(
    (
        "enable.ssl.certificate.verification",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "sasl.kerberos.service.name",
        # librdkafka runs kinit with these; the member reads the same credential cache.
        "sasl.kerberos.keytab",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal",
    )
)


def member_credentials(settings: ProcessorSettings) -> Any:
    """Return Faust's `broker_credentials`; None for plain text. Reads certificates; blocks briefly.

    Raises `SettingsError` that names the variable of a certificate that cannot be read, or of a
    setting that the group's member cannot follow.
    """
    protocol, mechanism = settings.security_protocol, settings.sasl_mechanism
    if protocol == "PLAINTEXT":
        return None
    _check_translated(settings.librdkafka)
    context = _ssl_context(settings) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return faust.SSLCredentials(context)
    if mechanism == "OAUTHBEARER":
        return faust.OAuthCredentials(oauth_cb=BearerTokens(settings.librdkafka), ssl_context=context)
    if mechanism == "GSSAPI":
        service = settings.librdkafka.get("sasl.kerberos.service.name", "kafka")
        return faust.GSSAPICredentials(kerberos_service_name=service, ssl_context=context)
    if mechanism not in _PLAIN:
        raise SettingsError(f"SESSIONARY_SASL_MECHANISM: a processor cannot join its group by {mechanism}")
    password = settings.sasl_password.get_secret_value() if settings.sasl_password else None
    return faust.SASLCredentials(
        username=settings.sasl_username, password=password, mechanism=mechanism, ssl_context=context
    )


def _check_translated(options: Mapping[str, str]) -> None:
    for name in options:
        secures = name.startswith(("ssl.", "sasl.")) and not name.startswith("sasl.oauthbearer.")
        if secures and name not in _TRANSLATED:
            raise SettingsError(
                f"{option_variable(name)}: a processor's member of the group cannot follow {name}; certificates and "
                "keys must be PEM, by ssl.certificate.location and ssl.key.location"
            )


def _ssl_context(settings: ProcessorSettings) -> ssl.SSLContext:
    options = settings.librdkafka
    context = ssl.create_default_context()
    authority = settings.ssl_ca_location
    if authority not in (None, "probe"):
        # As in librdkafka, named authorities replace the system's.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        place = {"capath" if Path(authority).is_dir() else "cafile": authority}
        _apply("SESSIONARY_SSL_CA_LOCATION", lambda: context.load_verify_locations(**place))
    elif "ssl.ca.pem" in options:
        context = pem_context(option_variable("ssl.ca.pem"), options["ssl.ca.pem"])
    if "ssl.crl.location" in options:
        _apply(
            option_variable("ssl.crl.location"),
            lambda: context.load_verify_locations(cafile=options["ssl.crl.location"]),
        )
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if "ssl.cipher.suites" in options:
        _apply(option_variable("ssl.cipher.suites"), lambda: context.set_ciphers(options["ssl.cipher.suites"]))
    _load_certificate(context, options)
    if options.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if options.get("enable.ssl.certificate.verification", "true").lower() in ("false", "0", "f"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_certificate(context: ssl.SSLContext, options: Mapping[str, str]) -> None:
    """Load the certificate that the broker asks for, and its key, from files or from texts."""
    password = options.get("ssl.key.password")
    if "ssl.certificate.location" in options:
        key = options.get("ssl.key.location")
        _apply(
            option_variable("ssl.certificate.location"),
            lambda: context.load_cert_chain(options["ssl.certificate.location"], key, password or _no_password),
        )
    elif "ssl.certificate.pem" in options:
        both = "\n".join(_with_lines(options.get(name, "")) for name in ("ssl.key.pem", "ssl.certificate.pem"))
        # The ssl module reads files only. This one is the owner's alone, and deleted at once.
        descriptor, path = tempfile.mkstemp(prefix="sessionary-")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(both)
            _apply(
                option_variable("ssl.certificate.pem"),
                lambda: context.load_cert_chain(path, None, password or _no_password),
            )
        finally:
            with suppress(FileNotFoundError):
                Path(path).unlink()


def _no_password() -> str:
    """Answer for an encrypted key without a password; OpenSSL would ask on a terminal."""
    raise ValueError("the key is encrypted: set SESSIONARY_KAFKA_SSL_KEY_PASSWORD")


def _with_lines(pem: str) -> str:
    """Return a PEM text whose line ends may be written as a backslash and n."""
    return pem.replace("\\n", "\n")


def _apply(variable: str, step: Callable[[], object]) -> None:
    try:
        step()
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise SettingsError(f"{variable}: {cause_text(error)}") from None
