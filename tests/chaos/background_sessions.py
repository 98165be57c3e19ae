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
from sessionary.schemas.types import Limits, RunMode

EVENTS_PER_SESSION = 30
_TEXT = "some text of the agent " * 20


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
            session = self._client.create(user_id="u1", state={"n": 0}, limits=self._limits, session_id=session_id)
            session.start()
            with _run_of(session, number):
                for turn in range(EVENTS_PER_SESSION - 8):
                    _emit_turn(session, turn)
                    sent += 1
                    self._stop.wait(max(0.0, began_s + sent / rate - time.monotonic()))
            session.complete()
            sent += 8
        self.done.set()

    def close(self) -> None:
        """Stop, flush and close the client."""
        self._stop.set()
        self._client.close()


def _run_of(session: Session, number: int) -> AbstractContextManager[object]:
    """Return a run of the session's turns; of every third session there is none."""
    mode: RunMode | None = (None, "attached", "detached")[number % 3]
    return nullcontext() if mode is None else session.run("chat", mode=mode)


def _emit_turn(session: Session, turn: int) -> None:
    match turn % 5:
        case 0:
            session.usage(model="m", tokens_in=100, tokens_out=20, model_cost_usd_micros=5)
        case 1:
            session.progress(turn)
        case _:
            session.activity("llm", _TEXT)


__all__ = ["EVENTS_PER_SESSION", "BackgroundSessions", "session_ids"]
