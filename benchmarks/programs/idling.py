"""A program of a service with sessions that are open and silent; it takes those that migrate to it.

    python -m benchmarks.programs.idling billing --sessions 1000 --ready FILE

It writes the ids of the sessions that it opened to FILE, a line each, once all are Active. Then it
beats for what it has until SIGTERM. The limits are so long that no session ends by itself.
"""

import argparse
import signal
import sys
import tempfile
import threading
from pathlib import Path

from sessionary.producers import ProducerSettings, Session, SessionClient
from sessionary.schemas.types import Limits

_LIMITS = Limits(model_ms=600_000, override=True)


def main() -> int:
    """Open the sessions, and keep them until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.idling")
    parser.add_argument("service")
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--ready", type=Path, required=True)
    given = parser.parse_args()
    stop, kept = threading.Event(), list[Session]()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool:
        settings = ProducerSettings.from_env(spool_dir=Path(spool), handle_sigterm=False)
        name = given.service
        with SessionClient(tenant_id="acme", service_id=name, agent_id=f"{name}-1", settings=settings) as client:
            client.accept_migrations(kept.append)
            opened = [
                client.session(user_id=f"u{n}", state={"cart": ["a line of the agent's state"] * 40}, limits=_LIMITS)
                for n in range(given.sessions)
            ]
            if opened:
                opened[-1].sync()
            draft = given.ready.with_suffix(".draft")
            draft.write_text("".join(f"{session.session_id}\n" for session in opened))
            draft.replace(given.ready)
            stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
