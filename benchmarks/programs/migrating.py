"""A program that moves sessions to another service, one at a time, while their agents work.

    python -m benchmarks.programs.migrating --migrations 220

The other service is another process, which this program starts. An agent sends an event every 5 ms
into its session until the session has left; the migration begins after some of these events. The
other service sends an event as soon as it has the session.

It prints one line of JSON: `sessions`, the ids in the order in which they moved, and `migrate_ms`,
for each of them the time from the call of `migrate` to its return. The exit code is 1 if a session
did not move.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from sessionary.producers import ProducerSettings, Session, SessionClient, SessionFenced

SOURCE, TARGET = "billing", "shipping"
_TAKE = "take"
_PACE_S = 0.005
_WORK_S = 0.1  # before the session is offered
_TTL_S = 60.0
_END_S = 30.0


def _open_client(service_id: str, spool: str) -> SessionClient:
    settings = ProducerSettings.from_env(spool_dir=Path(spool))
    return SessionClient(tenant_id="acme", service_id=service_id, agent_id=f"{service_id}-1", settings=settings)


def take_sessions(spool: str) -> int:
    """Take sessions, and send an event in each, until standard input ends."""
    kept: list[Session] = []

    def work(session: Session) -> None:
        session.activity("llm", "arrived")
        kept.append(session)

    with _open_client(TARGET, spool) as client:
        client.accept_migrations(work)
        sys.stdin.read()
    return 0


def _work_until_fenced(session: Session) -> None:
    due_s = time.monotonic()
    while True:
        try:
            session.activity("llm", "a line about what was done")
        except SessionFenced:
            return
        due_s += _PACE_S
        time.sleep(max(0.0, due_s - time.monotonic()))


def _move_session(client: SessionClient) -> tuple[str, float]:
    """Move a new session; return its id, and how long `migrate` took, ms."""
    session = client.session(user_id="u1", state={"cart": ["a line of the agent's state"] * 40})
    session.sync()
    agent = threading.Thread(target=_work_until_fenced, args=(session,), daemon=True)
    agent.start()
    time.sleep(_WORK_S)
    begun_ns = time.perf_counter_ns()
    session.migration.move(to=TARGET, ttl_s=_TTL_S)
    took_ms = (time.perf_counter_ns() - begun_ns) / 1e6
    agent.join()
    return session.session_id, took_ms


def main() -> int:
    """Move the sessions, print, and return the exit code."""
    if sys.argv[1:2] == [_TAKE]:
        return take_sessions(sys.argv[2])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.migrating")
    parser.add_argument("--migrations", type=int, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool:
        words = [sys.executable, "-m", "benchmarks.programs.migrating", _TAKE, f"{spool}/other"]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as other, _open_client(SOURCE, f"{spool}/own") as client:
            moved = [_move_session(client) for _ in range(given.migrations)]
            other.communicate(timeout=_END_S)
    sessions, migrate_ms = zip(*moved, strict=True)
    sys.stdout.write(json.dumps({"sessions": sessions, "migrate_ms": migrate_ms}) + "\n")
    return other.returncode


if __name__ == "__main__":
    sys.exit(main())
