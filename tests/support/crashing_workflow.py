"""The workflow as a process that kills itself at a crash point; see `tests.support.crash_points`.

python -m tests.support.crashing_workflow POINT URL SESSION_ID ISSUE     # POINT -1: never

Prints how many crash points it crossed, if it comes to its end.
"""

import os
import signal
import sys
from typing import Any

from examples.workflow import workflow
from sessionary.producers import kafka_ports
from tests.support.crash_points import Life


def main(point: str, url: str, session_id: str, issue_key: str) -> None:
    """Work as the example does, until the crash point."""
    life = Life(int(point) if int(point) >= 0 else None, lambda: os.kill(os.getpid(), signal.SIGKILL))
    make_ports = kafka_ports.kafka_ports

    def guarded_ports(*args: Any) -> Any:
        ports = make_ports(*args)
        return ports._replace(**life.guard_ports(ports))

    vars(kafka_ports)["kafka_ports"] = guarded_ports
    vars(workflow)["ask_service"] = life.guard("HTTP request", workflow.ask_service)
    workflow.main(url, session_id, issue_key)
    sys.stdout.write(f"crossed {len(life.crossed)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
