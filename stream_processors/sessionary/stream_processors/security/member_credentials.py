"""The group member's TLS and SASL in Faust's terms, from the settings that librdkafka gets.

The member is aiokafka's, which knows no setting of librdkafka. One that secures a connection and
cannot be translated is an error: the member must not connect less safely than its fellows.
"""

import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import faust

from sessionary.schemas.errors import SettingsError, cause_text
from sessionary.schemas.settings.librdkafka_options import option_variable
from sessionary.schemas.tls import pem_context
from sessionary.stream_processors.security.bearer_tokens import BearerTokens
from sessionary.stream_processors.settings import ProcessorSettings

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
