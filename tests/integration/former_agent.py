"""An agent as it was written for 0.1.0: one session after another.

    python -m tests.integration.former_agent FOLDER

It uses only what 0.1.0 has, so the clients of both releases run it. A verb that fails for good ends
it with an error. After a first SIGTERM it begins no session, and answers clean-up requests until a
second one.
"""

import signal
import sys
import threading
from itertools import count
from pathlib import Path

from sessionary.producers import ProducerSettings, Session, SessionClient, Unavailable

TENANT, SERVICE = "acme", "former"
JOURNAL = "journal-former.ndjson"
FINISHED = "no further sessions"
_TURNS, _TURN_S = 12, 0.05
_RESUMES = 10  # each waits for the verdict: the worker that is asked may be away


def main() -> None:
    """Play sessions until the first SIGTERM, and deliver everything after the second."""
    folder, stop, close = Path(sys.argv[1]), threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: (close if stop.is_set() else stop).set())
    settings = ProducerSettings.from_env(
        spool_dir=folder / "spool-former", journal_path=folder / JOURNAL, handle_sigterm=False, close_timeout_s=240
    )
    with SessionClient(tenant_id=TENANT, service_id=SERVICE, agent_id="agent-1", settings=settings) as client:
        client.on_cleanup(lambda _request: None)
        for number in count():
            if stop.is_set():
                break
            _play_session(client, stop, pauses=number % 3 == 0)
        sys.stdout.write(f"{FINISHED}\n")
        close.wait()


def _play_session(client: SessionClient, stop: threading.Event, *, pauses: bool) -> None:
    session = client.create(user_id="u1", state={"turn": 0})
    session.start()
    for turn in range(_TURNS):
        _take_turn(session, turn)
        stop.wait(_TURN_S)
    if pauses:
        session.pause("a break")
        _resume(session)
    session.complete()


def _take_turn(session: Session, turn: int) -> None:
    match turn % 5:
        case 0:
            session.activity("llm", "some text of the agent " * 20)
        case 1:
            session.usage(model="m", tokens_in=100, tokens_out=20, model_cost_usd_micros=5)
        case 2:
            session.update_state({"turn": turn})
        case 3:
            session.snapshot()
        case _:
            session.progress(turn, _TURNS)


def _resume(session: Session) -> None:
    for left in range(_RESUMES - 1, -1, -1):
        try:
            session.resume()
            return
        except Unavailable:
            if not left:
                raise


if __name__ == "__main__":
    main()
