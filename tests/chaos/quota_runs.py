"""Runs that ask for their tenant's quota, more at once than it has slots.

Each session begins one run after another, and waits until it is admitted. How many are in a run at
the same time is counted here, where no part of the product has a say.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sessionary.infra.stack import api_ready
from sessionary.producers import ProducerError, ProducerSettings, QuotaExceeded, Session, SessionClient, Unavailable
from sessionary.schemas.events import RunCancelled
from sessionary.schemas.settings import ENV_PREFIX
from tests.chaos.agent import limits
from tests.chaos.schedule import QUOTA_SLOTS, QUOTA_TENANT, QUOTAS
from tests.chaos.stack import ChaosStack

SESSIONS = 8
_HOLD_S = (0.05, 0.4)
# Longer than any fault and what follows it; a run that waits for so long waits for ever.
_WAIT_S = 300.0
_DUE_S = 0.1


class QuotaFigures(NamedTuple):
    """How many runs took a slot, how many did so at once at most, and how many were given up."""

    runs: int = 0
    at_once: int = 0
    given_up: int = 0


class Slots:
    """Counts who holds a slot. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._held = self.most = self.taken = 0
        self.faults: list[str] = []

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold a slot in the context."""
        with self._lock:
            self._held += 1
            self.taken += 1
            self.most = max(self.most, self._held)
            if self._held > self._limit:
                self.faults.append(f"{self._held} runs held a slot at once, of {self._limit}")
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1


class QuotaRuns:
    """The sessions, each in a thread. Without the role quotas there are none."""

    def __init__(self, stack: ChaosStack, seed: int, are_due: Callable[[], bool]) -> None:
        """`are_due`: whether runs ask for quotas by now; none begins before."""
        self._stack, self._seed, self._are_due = stack, seed, are_due
        self._folder = stack.folder / "quota-runs"
        self._folder.mkdir()
        self._slots, self._stop = Slots(QUOTA_SLOTS), threading.Event()
        self._given_up, self._faults = 0, list[str]()
        self._client: SessionClient | None = None
        self._threads: list[threading.Thread] = []
        if stack.quotas_url is not None:
            environ = {ENV_PREFIX + name: value for name, value in stack.environ.items()}
            settings = ProducerSettings.from_env(
                environ,
                api_token=stack.tokens[QUOTA_TENANT],
                spool_dir=self._folder / "spool",
                journal_path=self._folder / "journal-quotas.ndjson",
                handle_sigterm=False,
                quotas=True,
                quota_wait_s=_WAIT_S,
            )
            self._client = SessionClient(
                tenant_id=QUOTA_TENANT, service_id="queue", agent_id="quotas", settings=settings
            )
            self._threads = [threading.Thread(target=self._work, args=(n,), daemon=True) for n in range(SESSIONS)]

    @property
    def figures(self) -> QuotaFigures:
        return QuotaFigures(self._slots.taken, self._slots.most, self._given_up)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def admission_after(self, pid: int) -> Callable[[int], bool]:
        """Return what tells whether runs are admitted again, after the worker `pid` was killed.

        The first few may have been admitted before: their verdicts were under way.
        """
        url, before = self._stack.quotas_url, list[int]()
        assert url is not None

        def is_admitting(_at_ms: int) -> bool:
            if not before and self._stack.pid(QUOTAS) not in (None, pid) and api_ready(url):
                before.append(self._slots.taken)
            return bool(before) and self._slots.taken > before[0] + QUOTA_SLOTS

        return is_admitting

    def finish(self) -> list[str]:
        """Begin no further run, and wait for those that wait; return what is wrong. Blocks."""
        self._stop.set()
        deadline_s = time.monotonic() + _WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        waiting = sum(thread.is_alive() for thread in self._threads)
        late = [f"{waiting} sessions did not end {_WAIT_S:g} s after the last run could begin"] if waiting else []
        idle = ["no run took a slot"] if self._threads and not self._slots.taken else []
        return [*self._slots.faults, *self._faults, *late, *idle]

    def close(self) -> None:
        """Stop, flush and close the client."""
        self._stop.set()
        if self._client is not None:
            self._client.close()

    def journal_paths(self) -> list[Path]:
        """Return the paths of the client's journals."""
        return sorted(self._folder.glob("journal-*.ndjson"))

    def _work(self, number: int) -> None:
        assert self._client is not None
        rng = random.Random(f"quotas:{self._seed}:{number}")
        while not self._are_due():
            if self._stop.wait(_DUE_S):
                return
        session = self._client.create(user_id="u1", state={"n": number}, limits=limits(brief=False))
        session.start()
        while not self._stop.is_set():
            self._run_once(session, rng.uniform(*_HOLD_S))
        session.complete()

    def _run_once(self, session: Session, hold_s: float) -> None:
        # A detached run does not end with its session: it would wait, or hold its slot, for a day.
        run = session.run("slot", mode="detached")
        try:
            with run, self._slots.hold():
                time.sleep(hold_s)
        except QuotaExceeded as error:
            self._faults.append(f"run {run.run_id} was not admitted: {error}")
        except Unavailable:  # it may have begun all the same
            self._given_up += 1
            session.emit(RunCancelled("its client heard no answer"), run_id=run.run_id)
        except ProducerError as error:
            self._faults.append(f"run {run.run_id} failed: {error!r}")
