"""Carries a plan out with the client: one client for each (tenant, service), a heap of due actions, a few threads.

A session's actions run one after another, each at its time or, after a slow one, at once. The clients stay open until
`close`, as they answer the clean-up requests of the sessions that ended.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from sessionary.infra.demo.broken_events import BrokenSender
from sessionary.infra.demo.plan import Action, Plan, PlannedSession
from sessionary.infra.demo.verbs import perform
from sessionary.producers import ProducerSettings, Session, SessionClient
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.settings import KafkaSettings

_THREADS = 6
_TROUBLES_MAX = 20
_PROGRESS_EVERY_S = 0.5


class PlayCounts(NamedTuple):
    """The clients' own counters, summed; broken records are among `sent` and `delivered`."""

    sent: int
    delivered: int
    dropped: int
    failed: int
    heartbeats: int
    actions_late_s_max: float


class _Cast(NamedTuple):
    """A session at play."""

    planned: PlannedSession
    todo: deque[Action]


class Player:
    """Plays one plan; a context manager that closes its clients. `play` blocks until the last action is done."""

    def __init__(
        self,
        plan: Plan,
        environ: Mapping[str, str],
        tokens: Mapping[str, str],
        folder: Path,
        on_trouble: Callable[[str], None],
    ) -> None:
        """`environ`: the stack's settings. `tokens`: tenant → bearer token. Journals are written to `folder`."""
        self._plan = plan
        self._tokens = tokens
        self._folder = folder
        self._environ = environ
        self._on_trouble = on_trouble
        self._clients: dict[tuple[str, str], SessionClient] = {}
        self._sessions: dict[str, Session] = {}
        self._broken = BrokenSender(KafkaSettings.from_env(environ), self._journal("broken"))
        self._broken_lock = threading.Lock()
        self._troubles = 0
        self._late_s_max = 0.0
        self._due: list[tuple[float, int, _Cast]] = []
        self._open = 0
        self._news = threading.Condition()
        self._began = 0.0
        self._counts: PlayCounts | None = None

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def journals(self) -> list[Path]:
        """The NDJSON files, complete once the player is closed."""
        return sorted(self._folder.glob("journal-*.ndjson"))

    @property
    def counts(self) -> PlayCounts:
        """What was sent; final once the player is closed."""
        if self._counts is not None:
            return self._counts
        if self._broken_lock.acquire(blocking=False):  # else somebody is sending, and takes them itself
            try:
                self._broken.settle()
            finally:
                self._broken_lock.release()
        counters = [client.counters for client in self._clients.values()]
        return PlayCounts(
            sent=sum(counter.sent for counter in counters) + self._broken.sent,
            delivered=sum(counter.delivered for counter in counters) + self._broken.delivered,
            dropped=sum(counter.dropped for counter in counters),
            failed=sum(counter.failed for counter in counters),
            heartbeats=sum(counter.heartbeats for counter in counters),
            actions_late_s_max=round(self._late_s_max, 3),
        )

    @property
    def open_sessions(self) -> int:
        """How many sessions have actions left."""
        return self._open

    def play(self, progress: Callable[[str], None]) -> None:
        """Do every action at its time. Raises what opening a client raises; troubles of actions are reported."""
        for session in self._plan.sessions:
            self._client(session)
        casts = [_Cast(session, deque(session.actions)) for session in self._plan.sessions]
        self._due = [(cast.todo[0].at_s, n, cast) for n, cast in enumerate(casts)]
        heapq.heapify(self._due)
        self._open = len(casts)
        self._began = time.monotonic()
        # Threads that live through the whole play: a session's heartbeat stops with the thread that used it last.
        with ThreadPoolExecutor(_THREADS, "player") as pool:
            working = {pool.submit(self._work) for _ in range(_THREADS)}
            while working:
                done, working = wait(working, _PROGRESS_EVERY_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                progress(
                    f"playing {time.monotonic() - self._began:.0f} of {self._plan.duration_s:.0f} s: "
                    f"{len(casts) - self._open} of {len(casts)} sessions done, {self.counts.sent} events sent"
                )

    def close(self) -> None:
        """Drain and close every client."""
        for client in self._clients.values():
            client.close()
        self._broken.close()
        self._counts = self.counts
        self._clients.clear()

    def _journal(self, name: str) -> Path:
        return self._folder / f"journal-{name}.ndjson"

    def _client(self, session: PlannedSession) -> SessionClient:
        name = (session.tenant_id, session.service_id)
        if name not in self._clients:
            settings = ProducerSettings.from_env(
                self._environ,
                api_token=self._tokens.get(session.tenant_id),
                journal_path=self._journal(f"{session.tenant_id}-{session.service_id}"),
                spool_dir=self._folder / "spool",
                handle_sigterm=False,
            )
            client = SessionClient(
                tenant_id=session.tenant_id,
                service_id=session.service_id,
                agent_id=f"{session.service_id}-agent",
                settings=settings,
                on_error=lambda error: self._trouble(str(error)),
            )
            self._clients[name] = client
            client.on_cleanup(lambda _request: None)
        return self._clients[name]

    def _trouble(self, text: str) -> None:
        self._troubles += 1
        if self._troubles <= _TROUBLES_MAX:
            self._on_trouble(text)

    def _work(self) -> None:
        """One thread: take what is due, do it, put the session back with its next action."""
        try:
            self._work_on()
        finally:
            # All are done, or this thread failed: then the others must not wait for its session.
            self._open = 0

    def _work_on(self) -> None:
        while (taken := self._take()) is not None:
            n, cast = taken
            action = cast.todo.popleft()
            try:
                self._do(cast.planned, action)
            except SessionaryError as error:
                self._trouble(f"{cast.planned.outcome} session {cast.planned.session_id}, {action.verb}: {error}")
                cast.todo.clear()
            with self._news:
                if cast.todo:
                    heapq.heappush(self._due, (cast.todo[0].at_s, n, cast))
                else:
                    self._open -= 1
                self._news.notify()

    def _take(self) -> tuple[int, _Cast] | None:
        """Wait for the next due session; None when all are done."""
        with self._news:
            while self._open:
                if not self._due:
                    self._news.wait(0.1)
                    continue
                wait_s = self._due[0][0] - (time.monotonic() - self._began)
                if wait_s <= 0:
                    self._late_s_max = max(self._late_s_max, -wait_s)
                    _, n, cast = heapq.heappop(self._due)
                    return n, cast
                self._news.wait(wait_s)
            self._news.notify_all()
            return None

    def _do(self, planned: PlannedSession, action: Action) -> None:
        if action.verb == "create":
            self._sessions[planned.session_id] = self._client(planned).create(
                user_id=planned.user_id,
                state={"run": planned.run_name, "step": 0},
                limits=planned.limits,
                data_classes=planned.data_classes,
                session_id=planned.session_id,
            )
        elif action.verb == "broken":
            with self._broken_lock:
                self._broken.send(action.name, planned)  # type: ignore[arg-type]  # the plan's names are the kinds
        else:
            perform(self._sessions[planned.session_id], action)


__all__ = ["PlayCounts", "Player"]
