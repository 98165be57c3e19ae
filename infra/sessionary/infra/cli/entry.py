"""The entry of the command `sessionary`, also without the extra that has the commands."""

import sys

from sessionary.infra.cli.extras import missing_extra

_USAGE = 2


def main() -> None:
    """Run the command that the process's arguments name, and exit with its code."""
    try:
        from sessionary.infra.cli.app import run
    except ModuleNotFoundError as error:
        advice = missing_extra(error)
        if advice is None:
            raise
        sys.stderr.write(f"sessionary: {advice}\n")
        sys.exit(_USAGE)
    sys.exit(run())
