"""The log lines of a server role: JSON for programs, or text for people.

A line has its time (UTC, in ms), level, role and instance, the event as a sentence, and its subject
in separate fields: `tenant_id`, `session_id`, `partition`, `offset`, `error_class`. No line has a
payload or a token. The same line is written once in 30 s; `suppressed` counts the others.

This module needs structlog, which the extras of the roles bring. Lines go through the standard
library's loggers, so a program that has configured these loggers decides where lines go.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Generic, NoReturn, TextIO, TypeVar, cast

import structlog
from confluent_kafka import KafkaError, KafkaException
from structlog.stdlib import BoundLogger, ExtraAdder, ProcessorFormatter
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.settings import LogSettings
from sessionary.schemas.settings.variables import warn_of_near_misses
from sessionary.schemas.telemetry.log_fields import ERROR, ERROR_CLASS, PARTITION, REASON

# Which lines of a log are written if the same one comes again and again. Pure.


REPEAT_S = 30.0
_KEYS_MAX = 1_000
Line = TypeVar("Line")


@dataclass(slots=True)
class _Repeated(Generic[Line]):
    written_s: float
    suppressed: int = 0
    last: Line | None = None


class RepeatLimiter(Generic[Line]):
    """Passes one line of a key per interval, and counts the suppressed ones. Not thread-safe.

    Each result is a line to write, and the number of its key's lines that were suppressed since the
    last written one.
    """

    def __init__(self, interval_s: float = REPEAT_S, keys_max: int = _KEYS_MAX) -> None:
        """`keys_max`: of more keys, the one that was written first is forgotten."""
        self._interval_s = interval_s
        self._keys_max = keys_max
        self._repeated: dict[Hashable, _Repeated[Line]] = {}

    def take_line(self, key: Hashable, line: Line, now_s: float) -> list[tuple[Line, int]]:
        """Take the next line; return what is to be written now. `now_s` is monotonic."""
        known = self._repeated.get(key)
        if known is not None and now_s - known.written_s < self._interval_s:
            known.suppressed += 1
            known.last = line
            return []
        self._repeated.pop(key, None)  # the dict is in the order of writing
        self._repeated[key] = _Repeated(now_s)
        forgotten: list[tuple[Line, int]] = []
        if len(self._repeated) > self._keys_max:
            forgotten = _last_line(self._repeated.pop(next(iter(self._repeated))))
        return [*forgotten, (line, known.suppressed if known is not None else 0)]

    def take_suppressed(self) -> list[tuple[Line, int]]:
        """Return the last suppressed line of each key, and forget all keys: the log ends."""
        found = [entry for repeated in self._repeated.values() for entry in _last_line(repeated)]
        self._repeated.clear()
        return found


def _last_line(repeated: _Repeated[Line]) -> list[tuple[Line, int]]:
    return [] if repeated.last is None else [(repeated.last, repeated.suppressed - 1)]


EXIT_HUNG: Final = 70
_OWN: Final = "sessionary"
# Lower levels of these libraries are left out: the roles report such events with their own fields.
_LIBRARY_LEVELS: Final = {
    "faust": logging.WARNING,
    "mode": logging.WARNING,
    "aiokafka": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "urllib3": logging.CRITICAL,
    "clickhouse_connect": logging.CRITICAL,
}
_ENDS: Final = "the role ends: "
_HEAD: Final = ("time", "level", "role", "instance", "event")
# Two lines with another value of one of these are not the same.
_KEY_FIELDS: Final = (PARTITION, "part", "state", ERROR_CLASS)
# Errors whose text never repeats a record.
_SAFE_ERRORS: Final = (SessionaryError, KafkaException, OSError, KeyboardInterrupt)


def role_logger(name: str) -> BoundLogger:
    """Return the logger of a module of a role, a structlog one on top of `logging.getLogger(name)`.

    Keywords of a call become fields of its line, and `%(field)s` in the event stands for one. The
    event before that and the fields `partition`, `part`, `state` and `error_class` say whether two
    lines are the same. For a library's line, the event and its first argument do.
    """
    processors: list[Processor] = [structlog.stdlib.filter_by_level, cast(Processor, _to_standard_call)]
    logger = structlog.wrap_logger(
        logging.getLogger(name), processors=processors, wrapper_class=BoundLogger, cache_logger_on_first_use=True
    )
    return cast(BoundLogger, logger)


def _to_standard_call(
    _logger: WrappedLogger, _level: str, event: EventDict
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments of the standard library's logger."""
    text, exc_info = event.pop("event"), event.pop("exc_info", None)
    return (text, event) if "%(" in text else (text,), {"exc_info": exc_info, "extra": event}


def error_fields(error: BaseException | KafkaError) -> dict[str, object]:
    """Return the fields of a line about an error: text, class, and the reason if it has one."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    if isinstance(error, KafkaError):
        return {ERROR: error.str(), ERROR_CLASS: error.name()}
    fields: dict[str, object] = {ERROR: _describe_error(error), ERROR_CLASS: type(error).__name__}
    reason = getattr(error, "reason", None)
    return {**fields, REASON: reason} if isinstance(reason, str) else fields


def _describe_error(error: BaseException) -> str:
    """Return an error's text; only its class if its text may repeat a record."""
    return str(error) if isinstance(error, _SAFE_ERRORS) else type(error).__name__


class RoleLogHandler(logging.StreamHandler[TextIO]):
    """Writes each line once in 30 s, and on `close` the last suppressed ones. Thread-safe."""

    def __init__(self, stream: TextIO | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        """`stream`: by default stderr. `clock_s` is monotonic."""
        super().__init__(stream)
        self._clock_s = clock_s
        self._limiter: RepeatLimiter[logging.LogRecord] = RepeatLimiter(REPEAT_S)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it as suppressed."""
        fields = record.__dict__
        # Lines of libraries have no fields; what comes first in them is their subject or kind.
        first = record.args[0] if isinstance(record.args, tuple) and record.args else None
        key = (record.name, record.msg, str(first), *map(fields.get, _KEY_FIELDS))
        self._write_lines(self._limiter.take_line(key, record, self._clock_s()))

    def close(self) -> None:
        """Write the last suppressed lines. The stream stays open."""
        self.write_suppressed()
        super().close()

    def write_suppressed(self) -> None:
        """Write the last suppressed lines."""
        self.acquire()
        try:
            self._write_lines(self._limiter.take_suppressed())
        finally:
            self.release()

    def _write_lines(self, lines: list[tuple[logging.LogRecord, int]]) -> None:
        for record, suppressed in lines:
            if suppressed:
                record.suppressed = suppressed
            super().emit(record)


def configure_role_logs(
    role: str, instance: str | None = None, settings: LogSettings | None = None, stream: TextIO | None = None
) -> None:
    """Write this process's log to `stream` (default: stderr), as the settings say.

    Uncaught exceptions and warnings become lines too. If the root logger has a handler, it stays:
    the program that runs the role has configured its logs itself. The first lines name variables
    that are nearly settings. `settings`: by default those of the environment. Raises
    `SettingsError`.
    """
    settings = settings or LogSettings.from_env()
    for name, level in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(level)
    root = logging.getLogger()
    if not root.handlers:
        _write_lines(root, role, instance, settings, stream)
    warn_of_near_misses()


def _write_lines(
    root: logging.Logger, role: str, instance: str | None, settings: LogSettings, stream: TextIO | None
) -> None:
    handler = RoleLogHandler(stream)
    handler.setFormatter(line_formatter(role, instance, wants_json_lines(settings, handler.stream)))
    root.addHandler(handler)
    root.setLevel(settings.log_level)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda failed: _log_uncaught(
        failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback
    )


def wants_json_lines(settings: LogSettings, stream: TextIO) -> bool:
    """Return True if lines are JSON: the settings say so, or the stream is no terminal."""
    return settings.log_format == "json" or (settings.log_format is None and not stream.isatty())


def report_role_end(text: str) -> bool:
    """Write as the last line why this process ends; return False if it has no log on stderr."""
    handlers = [one for one in logging.getLogger().handlers if isinstance(one, RoleLogHandler)]
    ours = [handler for handler in handlers if handler.stream is sys.stderr]
    if not ours:
        return False
    for handler in ours:
        handler.write_suppressed()
    role_logger(__name__).critical(f"{_ENDS}%(why)s", why=text)
    return True


def end_hung_process() -> NoReturn:
    """End a role's process at once, with exit code 70: a clean-up might hang too.

    Lines that the log still holds back are written.
    """
    logging.shutdown()
    os._exit(EXIT_HUNG)


def read_end_reason(line: str) -> str:
    """Return the reason in a line of `report_role_end`; any other line is returned unchanged."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        line = str(json.loads(line)["event"])
    return line.partition(_ENDS)[2] or line


def line_formatter(role: str, instance: str | None, as_json: bool) -> logging.Formatter:
    """Return a formatter for records of the standard library's loggers."""

    def add_head(_logger: WrappedLogger, level: str, event: EventDict) -> EventDict:
        record: logging.LogRecord = event["_record"]
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": at.replace("+00:00", "Z"), "level": level, "role": role}
        if instance is not None:
            head["instance"] = instance
        if not record.name.startswith(_OWN):
            event["logger"] = record.name
        return {**head, **event}

    return ProcessorFormatter(
        foreign_pre_chain=[ExtraAdder(), add_head],
        processors=[
            ProcessorFormatter.remove_processors_meta,
            structlog.processors.ExceptionRenderer(_format_traceback),
            _render_json if as_json else _render_text,
        ],
    )


def _format_traceback(exc_info: ExcInfo) -> str:
    """Return a traceback. Texts of foreign errors are left out: they may repeat a record."""
    report = traceback.TracebackException(*exc_info)
    pending: list[tuple[traceback.TracebackException, BaseException | None]] = [(report, exc_info[1])]
    while pending:
        reported, error = pending.pop()
        if error is None:
            continue
        if not isinstance(error, _SAFE_ERRORS):
            reported._str = "(its text is left out)"  # type: ignore[attr-defined]  # there is no other place
        if reported.__cause__ is not None:
            pending.append((reported.__cause__, error.__cause__))
        if reported.__context__ is not None:
            pending.append((reported.__context__, error.__context__))
    return "".join(report.format()).rstrip()


def _render_json(_logger: WrappedLogger, _level: str, event: EventDict) -> str:
    named = {name: event.pop(name) for name in _HEAD if name in event}
    return json.dumps({**named, **event}, default=str)


def _render_text(_logger: WrappedLogger, _level: str, event: EventDict) -> str:
    """Return time, level, role and event; then the fields that the event does not mention."""
    at, level, role = event.pop("time"), event.pop("level"), event.pop("role")
    text, exception = str(event.pop("event")), event.pop("exception", None)
    fields = [f"{name}={value}" for name, value in event.items() if str(value) not in text]
    line = " ".join([at, level.upper(), role, text, *fields]).replace("\n", "\\n")
    return line if exception is None else f"{line}\n{exception}"


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, SystemExit | KeyboardInterrupt):
        return
    role_logger(__name__).critical(
        "thread %(thread_name)s ended by an uncaught exception",
        thread_name=threading.current_thread().name,
        exc_info=(kind, error, trace),
        **error_fields(error),
    )
