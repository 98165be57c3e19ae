"""The context of clients that ask over HTTPS."""

import ssl

from sessionary.schemas.errors import SettingsError


def trusting_context(variable: str, authority: str | None) -> ssl.SSLContext:
    """Return a context that trusts the authorities in the file `authority`; None: the system's.

    Reads the file. Raises `SettingsError` that names `variable`, which named the file.
    """
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingsError(f"{variable}: {authority} is no readable file of certificates: {cause}") from None


__all__ = ["trusting_context"]
