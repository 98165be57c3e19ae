"""The authorities that connections of a worker trust, named as in the settings of librdkafka."""

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings.librdkafka_options import option_variable


class Setting(NamedTuple):
    """A setting's value, None if it is not set, and its variable."""

    variable: str
    value: str | None


def option_setting(options: Mapping[str, str], name: str) -> Setting:
    """Return a setting of librdkafka."""
    return Setting(option_variable(name), options.get(name))


def trust_authorities(location: Setting, pem: Setting) -> ssl.SSLContext:
    """Return a context that trusts the authorities in a file or a folder, and those of a text.

    As in librdkafka, they replace the system's; `probe` and None name none. Reads files. Raises
    `SettingsError` that names the variable of authorities that cannot be read.
    """
    named = []
    if location.value not in (None, "probe"):
        named.append((location.variable, {"capath" if Path(location.value).is_dir() else "cafile": location.value}))
    if pem.value is not None:
        named.append((pem.variable, {"cadata": break_lines(pem.value)}))
    if not named:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for variable, place in named:
        apply_setting(variable, lambda place=place: context.load_verify_locations(**place))  # type: ignore[misc]
    return context


def apply_setting(variable: str, step: Callable[[], object]) -> None:
    """Run a step that applies a setting. Raises `SettingsError` that names the variable."""
    try:
        step()
    except (OSError, ValueError) as error:  # SSLError is an OSError
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingsError(f"{variable}: {cause}") from None


def break_lines(pem: str) -> str:
    """Return a PEM text whose line ends may be written as a backslash and n."""
    return pem.replace("\\n", "\n")


__all__ = ["Setting", "apply_setting", "break_lines", "option_setting", "trust_authorities"]
