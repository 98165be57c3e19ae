"""`make monitoring`: install Prometheus and Alertmanager, unless they are there.

The exit code is always 0: without them, the tests that need them are skipped, and say so.
"""

import sys

from tests.alerts.monitoring import ensure_programs

if __name__ == "__main__":
    ensure_programs(lambda text: sys.stderr.write(f"{text}\n"))
