"""A process that follows sessions by their ids, and prints each state that it gets as JSON."""

import json
import sys
import threading
import time

from sessionary.producers import SessionClient

_PRINTING = threading.Lock()


def _follow(client: SessionClient, session_id: str) -> None:
    for view in client.follow(session_id):
        reported_s = time.time()
        line = {"session": session_id, "version": view.version, "epoch": view.epoch, "state": view.state}
        with _PRINTING:
            sys.stdout.write(
                json.dumps({**line, "content": json.loads(view.state_json), "reported_s": reported_s}) + "\n"
            )
            sys.stdout.flush()


def main() -> None:
    """Follow the sessions of the arguments until each is archived."""
    with SessionClient(tenant_id="acme", service_id="reader", agent_id="reader") as client:
        threads = [threading.Thread(target=_follow, args=(client, session_id)) for session_id in sys.argv[1:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
