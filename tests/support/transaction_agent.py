"""Writers of one session's content, in a process of their own: each counts in transactions."""

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from sessionary.producers import Session, SessionClient, VersionConflict


def count(session: Session, name: str, times: int) -> int:
    """Count so often under a name; return how often a commit was refused."""
    refused = 0
    for _ in range(times):
        while True:
            try:
                with session.transaction() as pending:
                    found = pending.get(name, 0)
                    assert isinstance(found, int)
                    pending[name] = found + 1
                break
            except VersionConflict:
                refused += 1
    return refused


def main() -> None:
    """Count in the session of the arguments, with some threads, so often each; print as JSON.

    With no times the process begins a transaction, says so, and waits to be killed.
    """
    session_id, agent_id, threads, times = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with SessionClient(tenant_id="acme", service_id="counting", agent_id=agent_id) as client:
        session = client.attach(session_id)
        if not times:
            with session.transaction() as pending:
                pending[agent_id] = "never committed"
                sys.stdout.write("open\n")
                signal.pause()
        names = [f"{agent_id}-{number}" for number in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            refused = sum(pool.map(lambda name: count(session, name, times), names))
        session.lifecycle.detach()
    sys.stdout.write(json.dumps({"refused": refused}) + "\n")


if __name__ == "__main__":
    main()
