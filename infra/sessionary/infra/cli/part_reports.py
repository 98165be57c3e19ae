"""Tells what becomes of the processes of the local stack: people on stderr, and a log."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sessionary.infra.cli.output import print_message
from sessionary.infra.local.schedule import PartState
from sessionary.infra.local.supervisor import PartChange
from sessionary.schemas.settings import LogSettings

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


class PartReports:
    """Prints a line for each exit of a process, with its time (UTC).

    One that lacks something which must be set up first is tried again and again. It is told once,
    then only if the reason changes, and when it works.
    """

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """`clock` returns the time of day, in UTC."""
        self._clock = clock
        self._missing: dict[str, str] = {}  # by part, as it was told

    def report_change(self, change: PartChange) -> None:
        """Print what a change of state comes to, if anything. Does not block."""
        name = change.name
        if change.state is PartState.READY and self._missing.pop(name, None) is not None:
            self._print_line(f"{name} is ready now")
        if change.exit_code is None or change.wait_s is None:
            return
        if change.missing is None:
            self._missing.pop(name, None)
            self._print_line(f"{name} ended with code {change.exit_code}; restarting it in {change.wait_s:g} s")
            return
        from sessionary.schemas.telemetry.role_logs import read_end_reason

        missing = read_end_reason(change.missing)
        if self._missing.get(name) != missing:
            self._missing[name] = missing
            again = "it is tried again from time to time; only a change is told"
            self._print_line(f"{name} ended with code {change.exit_code}: {missing}; {again}")

    def _print_line(self, text: str) -> None:
        print_message(f"{self._clock():%Y-%m-%dT%H:%M:%SZ} {text}")


def change_reporter(log_folder: Path) -> Callable[[PartChange], None]:
    """Return what reports each change of a part: to a log, and to people what they must know.

    The log is `<log_folder>/supervisor.log`. If `SESSIONARY_LOG_FORMAT` is json, it is stderr, and
    has no lines for people. It begins with the first change. Raises `SettingsError`.
    """
    from sessionary.schemas.telemetry.role_logs import configure_role_logs, role_logger

    settings = LogSettings.from_env()
    as_json = settings.log_format == "json"
    reports = PartReports()

    @cache
    def begin_log() -> "BoundLogger":
        stream = sys.stderr if as_json else (log_folder / "supervisor.log").open("a", encoding="utf-8")
        in_form = settings.model_copy(update={"log_format": "json" if as_json else "text"})
        configure_role_logs("supervisor", settings=in_form, stream=stream)
        return role_logger(__name__)

    def report_change(change: PartChange) -> None:
        log = begin_log()
        fields: dict[str, object] = {"part": change.name, "pid": change.pid}
        if change.exit_code is not None and change.wait_s is not None:
            fields |= {"exit_code": change.exit_code, "wait_s": change.wait_s}
            log.warning("%(part)s ended with code %(exit_code)d; it is restarted in %(wait_s)g s", **fields)
        else:
            log.info("%(part)s is %(state)s", state=change.state.value, **fields)
        if not as_json:
            reports.report_change(change)

    return report_change
