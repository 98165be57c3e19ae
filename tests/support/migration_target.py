"""A process of a service to which sessions migrate; it prints what arrives, and works on.

`python -m tests.support.migration_target SERVICE [--hang]`: with `--hang` it says when the
processor holds a session, and never accepts it.
"""

import json
import queue
import sys
import threading
import time
from typing import Any

from sessionary.producers import Session, SessionClient
from sessionary.producers.session.migration import Migration


def _print_line(kind: str, session: Session, **more: Any) -> None:
    line = {"kind": kind, "session": session.session_id, "epoch": session.epoch, "state": session.state, **more}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _hang(migration: Any, *_: object) -> None:
    _print_line("held", Session(migration._core))
    threading.Event().wait()


def main() -> None:
    """Take sessions until the process is ended: count one step further in each, and keep it."""
    kept: list[Session] = []
    arrived: queue.SimpleQueue[Session] = queue.SimpleQueue()
    service, *options = sys.argv[1:]
    if "--hang" in options:
        Migration.accept = _hang  # type: ignore[method-assign, assignment]
    with SessionClient(tenant_id="acme", service_id=service, agent_id=f"{service}-1") as client:
        client.accept_migrations(arrived.put)
        while True:
            session = arrived.get()
            kept.append(session)
            state = session.state
            session.activity("arrived")
            head, turns = session.sync().snapshot_id, [turn.turn for turn in session.conversation.read()]
            session.update_state({**state, "steps": state["steps"] + 1})
            _print_line("arrived", session, before=state, head=head, turns=turns, at_s=time.time())


if __name__ == "__main__":
    main()
