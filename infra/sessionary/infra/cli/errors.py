"""Errors of commands, and the exit code of every error that is expected.

SessionaryError
└── CommandError
    ├── CheckFailed     a check of the command failed
    └── NotFound        there is no such session, record or file

code  meaning
0     done
1     a check failed: something is missing or doubled, doctor found a fault
2     usage: a wrong option, a setting missing or malformed, credentials refused
3     unreachable: the broker, ClickHouse or the processor does not answer
4     not found
5     refused: the input can never be accepted (a broken file, SQL with an error)
6     something must be set up first: a port is taken, the database is not migrated, a process does
      not start
130   interrupted
"""

import re
import sys

from sessionary.infra.local.errors import LocalStackError
from sessionary.schemas.errors import Invalid, SessionaryError, SettingsError, Unavailable

FAILED, USAGE, UNREACHABLE, NOT_FOUND, REFUSED, SET_UP, INTERRUPTED = 1, 2, 3, 4, 5, 6, 130


_KAFKA_SETTING = re.compile(r"\b(?:ssl|sasl|https)(?:\.[a-z]+)+")
# Errors of librdkafka: a configuration is wrong, such as a certificate that cannot be read.
_KAFKA_INVALID_ARGUMENT = -186


class CommandError(SessionaryError):
    """Base of the errors that commands raise themselves."""


class CheckFailed(CommandError):
    """A check failed: an event is missing or doubled, or doctor found a fault."""


class NotFound(CommandError):
    """There is no such session, record or file."""


_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (CheckFailed, FAILED),
    (NotFound, NOT_FOUND),
    (FileNotFoundError, NOT_FOUND),
    (SettingsError, USAGE),
    (Unavailable, UNREACHABLE),
    (ConnectionError, UNREACHABLE),
    (TimeoutError, UNREACHABLE),
    (Invalid, REFUSED),
    (LocalStackError, SET_UP),
    (OSError, SET_UP),
    (KeyboardInterrupt, INTERRUPTED),
)


def exit_code(error: BaseException) -> int | None:
    """Return the exit code of an expected error; None for a bug, which must show its traceback."""
    # Not imported: if the client or the sinks are not loaded yet, their errors cannot occur.
    client, sinks = (sys.modules.get(f"sessionary.{part}.errors") for part in ("producers", "sinks"))
    if client is not None and isinstance(error, client.AuthenticationFailed):
        return USAGE
    if client is not None and isinstance(error, client.SessionLost):
        return NOT_FOUND
    if sinks is not None and isinstance(error, sinks.OperatorError):
        return SET_UP
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, SessionaryError):
        return REFUSED
    if type(error).__name__ != "KafkaException":
        return None
    return USAGE if error.args and error.args[0].code() == _KAFKA_INVALID_ARGUMENT else UNREACHABLE


def error_text(error: BaseException) -> str:
    """Return the error's text for people, without the codes that programs read."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, Invalid):
        return error.detail
    if type(error).__name__ == "KafkaException" and error.args:
        return _kafka_text(str(error.args[0].str()))
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _kafka_text(text: str) -> str:
    """Return librdkafka's text, with the variables of the settings that it names."""
    from sessionary.schemas.settings.librdkafka_options import option_variable

    variables = sorted({option_variable(name) for name in _KAFKA_SETTING.findall(text)})
    return f"{text}: check {', '.join(variables)}" if variables else text
