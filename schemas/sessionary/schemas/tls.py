"""The context of clients that ask over HTTPS."""

import ssl
from pathlib import Path

from sessionary.schemas.errors import SettingsError, cause_text

_SYSTEM = "probe"  # librdkafka's word for the system's authorities


def trusting_context(variable: str, authority: str | None) -> ssl.SSLContext:
    """Return a context that trusts the authorities in the file `authority`; None: the system's.

    Reads the file. Raises `SettingsError` that names `variable`, which named the file.
    """
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{variable}: {authority} is no readable file of certificates: {cause_text(error)}"
        ) from None


def context_for(url: str | None, variable: str, location: str | None) -> ssl.SSLContext | None:
    """Return the context for requests to `url`; None if it is not HTTPS.

    `location`: a file of authorities, or a folder of them with the hashed names that `openssl
    rehash` makes. None or `probe`: the system's. Named authorities replace the system's.

    Reads the file. Raises `SettingsError` that names `variable`, which named the location.
    """
    if not (url or "").lower().startswith("https:"):
        return None
    if location is not None and Path(location).is_dir():
        return ssl.create_default_context(capath=location)
    return trusting_context(variable, None if location == _SYSTEM else location)


def pem_context(variable: str, pem: str) -> ssl.SSLContext:
    """Return a context that trusts the authorities in the text `pem`, and no others.

    Line ends may be written as a backslash and n, as in a variable. Raises `SettingsError` that
    names `variable`, which had the text; the message does not repeat it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.replace("\\n", "\n"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{variable}: it holds no certificates: {cause_text(error)}") from None
    return context
