"""Sessions that emit at a fixed rate and wait for no answer, also while all servers are down.

The plan runner's sessions wait for verdicts and stop if the control API is down; these fill the
spool.
"""

import threading
import time
import uuid
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from sessionary.producers import ProducerSettings, Session, SessionClient
from sessionary.producers.client_core.sessions import NewSession, send_creation
from sessionary.schemas.ids import GivenId
from sessionary.schemas.types import Limits, RunMode
from tests.chaos.turns import emit_turn

EVENTS_PER_SESSION = 30
_MODES: tuple[RunMode | None, ...] = (None, "attached", "detached")


def session_ids(name: str, rate: float, seconds: float) -> list[str]:
    """Return as many session ids as the rate needs; the same name gives the same ids."""
    count = int(rate * seconds / EVENTS_PER_SESSION) + 1
    return [str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name}:{n}")) for n in range(count)]


class BackgroundSessions:
    """One client with one session after another, until all are done or `close` is called."""

    def __init__(self, settings: ProducerSettings, tenant: str, service: str, journal: Path, limits: Limits) -> None:
        self._client = SessionClient(
            tenant_id=tenant,
            service_id=service,
            agent_id=f"{service}-background",
            settings=settings.model_copy(update={"journal_path": journal}),
        )
        self._limits = limits
        self._stop = threading.Event()
        self.done = threading.Event()

    @property
    def outstanding(self) -> int:
        """Number of events that are neither delivered nor dropped nor failed yet."""
        counters = self._client.counters
        return counters.sent + counters.replayed - counters.delivered - counters.dropped - counters.failed

    @property
    def dropped(self) -> int:
        """Number of events that were dropped because spool or queue were full."""
        return self._client.counters.dropped

    def run(self, ids: list[str], rate: float, until_s: float) -> None:
        """Run the sessions at `rate` events per second, at most until `until_s` (epoch). Blocks."""
        sent, began_s = 0, time.monotonic()
        for number, session_id in enumerate(ids):
            if self._stop.is_set() or time.time() >= until_s:
                break
            session = self._new_session(session_id)
            session.start()
            mode = _MODES[number % 3]
            with _run_of(session, mode):
                for turn in range(EVENTS_PER_SESSION - 8):
                    # A detached run that is held would outlive its session.
                    emit_turn(session, turn, holds_run=mode == "attached")
                    sent += 1
                    self._stop.wait(max(0.0, began_s + sent / rate - time.monotonic()))
            session.complete()
            sent += 8
        self.done.set()

    def _new_session(self, session_id: str) -> Session:
        """Return a session whose id is known beforehand; no other process has it, so wait not."""
        new = NewSession("u1", {"n": 0}, self._limits, (), None, 1, None, (None, None), "process", {})
        return Session(send_creation(self._client.core, new, GivenId(session_id, None), None, None))

    def close(self) -> None:
        """Stop, flush and close the client."""
        self._stop.set()
        self._client.close()


def _run_of(session: Session, mode: RunMode | None) -> AbstractContextManager[object]:
    """Return a run of the session's turns, or nothing without a mode."""
    return nullcontext() if mode is None else session.run("chat", mode=mode)
