"""Carries a plan out: one client per tenant and service, a heap of due actions, a few threads.

A session's actions run one after another, each at its time or, after a slow one, at once. The
clients stay open until `close`, because they answer the clean-up requests of sessions that have
ended.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from sessionary.infra.demo.actions import perform_action
from sessionary.infra.demo.broken_events import BrokenSender
from sessionary.infra.demo.plan import Action, Plan, PlannedSession
from sessionary.producers import ProducerSettings, Session, SessionClient
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.settings import KafkaSettings

_THREADS = 6
_ERRORS_REPORTED_MAX = 20
_PROGRESS_EVERY_S = 0.5


class DemoCounts(NamedTuple):
    """The sums of the clients' counters. `sent` and `delivered` include broken records."""

    sent: int
    delivered: int
    dropped: int
    failed: int
    heartbeats: int
    actions_late_s_max: float


class _ActiveSession(NamedTuple):
    """A session with the actions that are left."""

    planned: PlannedSession
    todo: deque[Action]


class PlanRunner:
    """Carries out one plan. A context manager, which closes the clients."""

    def __init__(
        self,
        plan: Plan,
        environ: Mapping[str, str],
        tokens: Mapping[str, str],
        folder: Path,
        on_action_error: Callable[[str], None],
    ) -> None:
        """`environ`: the stack's variables. `tokens`: bearer token by tenant.

        `folder`: for journals and spool. `on_action_error` is called with the first 20 errors,
        on the threads of the runner.
        """
        self._plan = plan
        self._tokens = tokens
        self._folder = folder
        self._environ = environ
        self._on_action_error = on_action_error
        self._clients: dict[tuple[str, str], SessionClient] = {}
        self._sessions: dict[str, Session] = {}
        self._broken = BrokenSender(KafkaSettings.from_env(environ), self._journal_path("broken"))
        self._broken_lock = threading.Lock()
        self._errors = 0
        self._late_s_max = 0.0
        self._due: list[tuple[float, int, _ActiveSession]] = []
        self._open = 0
        self._changed = threading.Condition()
        self._began = 0.0
        self._counts: DemoCounts | None = None

    def __enter__(self) -> "PlanRunner":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def journal_paths(self) -> list[Path]:
        """The journals, as NDJSON files; complete after `close`."""
        return sorted(self._folder.glob("journal-*.ndjson"))

    @property
    def counts(self) -> DemoCounts:
        """The counters so far; final after `close`."""
        if self._counts is not None:
            return self._counts
        if self._broken_lock.acquire(blocking=False):  # otherwise a sender processes them
            try:
                self._broken.poll_acknowledgements()
            finally:
                self._broken_lock.release()
        counters = [client.counters for client in self._clients.values()]
        return DemoCounts(
            sent=sum(counter.sent for counter in counters) + self._broken.sent,
            delivered=sum(counter.delivered for counter in counters) + self._broken.delivered,
            dropped=sum(counter.dropped for counter in counters),
            failed=sum(counter.failed for counter in counters),
            heartbeats=sum(counter.heartbeats for counter in counters),
            actions_late_s_max=round(self._late_s_max, 3),
        )

    @property
    def open_sessions(self) -> int:
        """The number of sessions that have actions left."""
        return self._open

    def run_plan(self, progress: Callable[[str], None]) -> None:
        """Perform every action at its time. Blocks until the last one is done.

        Errors of actions are reported, and end their session's actions. Raises what opening a
        client raises.
        """
        for session in self._plan.sessions:
            self._client_for(session)
        sessions = [_ActiveSession(session, deque(session.actions)) for session in self._plan.sessions]
        self._due = [(session.todo[0].at_s, n, session) for n, session in enumerate(sessions)]
        heapq.heapify(self._due)
        self._open = len(sessions)
        self._began = time.monotonic()
        # The threads live until the end: a session's heartbeats stop with the thread that used it
        # last.
        with ThreadPoolExecutor(_THREADS, "plan-runner") as pool:
            working = {pool.submit(self._run_thread) for _ in range(_THREADS)}
            while working:
                done, working = wait(working, _PROGRESS_EVERY_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                progress(
                    f"running {time.monotonic() - self._began:.0f} of {self._plan.duration_s:.0f} s: "
                    f"{len(sessions) - self._open} of {len(sessions)} sessions done, {self.counts.sent} events sent"
                )

    def close(self) -> None:
        """Flush and close every client. Blocks."""
        for client in self._clients.values():
            client.close()
        self._broken.close()
        self._counts = self.counts
        self._clients.clear()

    def _journal_path(self, name: str) -> Path:
        return self._folder / f"journal-{name}.ndjson"

    def _client_for(self, session: PlannedSession) -> SessionClient:
        name = (session.tenant_id, session.service_id)
        if name not in self._clients:
            settings = ProducerSettings.from_env(
                self._environ,
                api_token=self._tokens.get(session.tenant_id),
                journal_path=self._journal_path(f"{session.tenant_id}-{session.service_id}"),
                spool_dir=self._folder / "spool",
                handle_sigterm=False,
                poll_interval_s=0.0,  # time-outs and refusals are planned
            )
            client = SessionClient(
                tenant_id=session.tenant_id,
                service_id=session.service_id,
                agent_id=f"{session.service_id}-agent",
                settings=settings,
                on_error=lambda error: self._report_error(str(error)),
            )
            self._clients[name] = client
            client.on_cleanup(lambda _request: None)
        return self._clients[name]

    def _report_error(self, text: str) -> None:
        self._errors += 1
        if self._errors <= _ERRORS_REPORTED_MAX:
            self._on_action_error(text)

    def _run_thread(self) -> None:
        """One thread: take a due session, perform its action, put it back with its next one."""
        try:
            self._run_actions()
        finally:
            # All sessions are done, or this thread failed; then the others must not wait for its
            # session.
            self._open = 0

    def _run_actions(self) -> None:
        while (taken := self._next_due()) is not None:
            n, session = taken
            action = session.todo.popleft()
            try:
                self._perform(session.planned, action)
            except SessionaryError as error:
                self._report_error(
                    f"{session.planned.outcome} session {session.planned.session_id}, {action.verb}: {error}"
                )
                session.todo.clear()
            with self._changed:
                if session.todo:
                    heapq.heappush(self._due, (session.todo[0].at_s, n, session))
                else:
                    self._open -= 1
                self._changed.notify()

    def _next_due(self) -> tuple[int, _ActiveSession] | None:
        """Block until a session is due and return it; None if all are done."""
        with self._changed:
            while self._open:
                if not self._due:
                    self._changed.wait(0.1)
                    continue
                wait_s = self._due[0][0] - (time.monotonic() - self._began)
                if wait_s <= 0:
                    self._late_s_max = max(self._late_s_max, -wait_s)
                    _, n, session = heapq.heappop(self._due)
                    return n, session
                self._changed.wait(wait_s)
            self._changed.notify_all()
            return None

    def _perform(self, planned: PlannedSession, action: Action) -> None:
        if action.verb == "create":
            self._sessions[planned.session_id] = self._client_for(planned).create(
                user_id=planned.user_id,
                state={"run": planned.run_name, "step": 0},
                limits=planned.limits,
                data_classes=planned.data_classes,
                session_id=planned.session_id,
            )
        elif action.verb == "broken":
            with self._broken_lock:
                self._broken.send_record(action.name, planned)  # type: ignore[arg-type]  # the plan names a kind
        else:
            perform_action(self._sessions[planned.session_id], action)
