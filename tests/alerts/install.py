"""`make monitoring`: install Prometheus and Alertmanager, unless they are there."""

import sys

from tests.alerts.monitoring import NotInstalled, install_programs, missing_programs


def main() -> int:
    """Return 0. Without the programs, the tests that need them are skipped, and say so."""
    if missing := missing_programs():
        sys.stderr.write(f"not installed: {', '.join(missing)}; installing the Debian packages by apt-get\n")
        try:
            install_programs()
        except NotInstalled as error:
            sys.stderr.write(f"{error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
