"""TLS of the control API's server."""

import ssl

from sessionary.schemas.errors import SettingsError, cause_text
from sessionary.stream_processors.settings import ProcessorSettings


def serving_context(settings: ProcessorSettings) -> ssl.SSLContext | None:
    """Return the context of the control API's server; None for plain HTTP. Reads files.

    Raises `SettingsError` that names the variable.
    """
    certificate, key = settings.api_tls_certificate, settings.api_tls_key
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, _refuse_password)
    except (OSError, ValueError) as error:
        raise SettingsError(f"SESSIONARY_API_TLS_CERTIFICATE, SESSIONARY_API_TLS_KEY: {cause_text(error)}") from None
    return context


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; give one that is not, readable by the worker alone")
