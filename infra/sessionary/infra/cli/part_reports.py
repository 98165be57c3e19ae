"""Tells people on stderr which processes of the local stack ended, and why."""

from sessionary.infra.cli.output import print_message
from sessionary.infra.local.schedule import PartState
from sessionary.infra.local.supervisor import PartChange


class PartReports:
    """Prints a line for each exit of a process.

    One that lacks something which must be set up first is tried again and again. It is told once,
    then only if the reason changes, and when it works.
    """

    def __init__(self) -> None:
        self._missing: dict[str, str] = {}  # by part, as it was told

    def report_change(self, change: PartChange) -> None:
        """Print what a change of state comes to, if anything. Does not block."""
        name = change.name
        if change.state is PartState.READY and change.answers and self._missing.pop(name, None) is not None:
            print_message(f"{name} is ready now")
        if change.exit_code is None or change.wait_s is None:
            return
        if change.missing is None:
            self._missing.pop(name, None)
            print_message(f"{name} ended with code {change.exit_code}; restarting it in {change.wait_s:g} s")
        elif self._missing.get(name) != change.missing:
            self._missing[name] = change.missing
            again = "it is tried again from time to time; only a change is told"
            print_message(f"{name} ended with code {change.exit_code}: {change.missing}; {again}")


__all__ = ["PartReports"]
