"""What a session reads of the processor without adopting it: execution, artifacts, its state."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sessionary.producers.errors import StateMismatch
from sessionary.producers.run_ports import ArtifactView, ExecutionView, LogPosition, RunReads
from sessionary.producers.session.work import SessionWork
from sessionary.schemas.ids import content_hash

V = TypeVar("V")


class SessionViews(SessionWork):
    """The verbs that read and adopt nothing. Thread-safe; each waits as `sync` does."""

    def execution(self) -> ExecutionView:
        """Return what the session is at: its open runs, their steps and tool calls.

        The session's content is in `state`, what was said in `conversation`. Waits and raises as
        `sync` does.
        """
        return self._read_judged(
            lambda runs, after, timeout_s: runs.fetch_execution(self.session_id, after, timeout_s),
            ExecutionView((), ()),
        )

    def list_artifacts(self, run_id: str | None = None) -> Sequence[ArtifactView]:
        """Return the artifacts of a run in the order of their creation; none of an unknown run.

        `run_id`: None for those that belong to no run. Waits and raises as `sync` does.
        """
        return self._read_judged(
            lambda runs, after, timeout_s: runs.fetch_artifacts(self.session_id, run_id, after, timeout_s), ()
        )

    def verify(self) -> None:
        """Compare version and hash of the state that this object knows with the processor's.

        Adopts nothing, as `sync` would. Waits as `sync` does until the processor has judged what
        this client sent.

        Raises:
            StateMismatch: They differ: another process updated the state, or an update of this
                object was refused or lost.

        Otherwise raises as `sync` does.
        """
        while True:
            with self._lock:
                known = self._version, self._state_json
            view = self._fetch_judged(self._services.control.fetch_session)
            if (view.version, view.state_json) == known:
                return
            if known == (self._version, self._state_json):  # else another thread updated it meanwhile
                committed = view.version, content_hash(view.state_json)
                raise StateMismatch(self.session_id, (known[0], content_hash(known[1])), committed)

    # Inside

    def _read_judged(self, read: Callable[[RunReads, LogPosition | None, float], V], nothing: V) -> V:
        """Return what is read once all that was sent is judged; `nothing` if nothing is known."""
        runs = self._services.runs
        if runs is None:
            return nothing
        return self._fetch_judged(lambda session_id, after, timeout_s: read(runs, after, timeout_s))

    def _fetch_judged(self, fetch: Callable[[str, LogPosition | None, float], V]) -> V:
        self._emitter.check_process()
        services = self._services
        services.control.check_configured()
        deadline = time.monotonic() + services.verdict_timeout_s
        position = self._emitter.wait_position(services.verdict_timeout_s)
        return fetch(self.session_id, position, max(deadline - time.monotonic(), 0.1))


__all__ = ["SessionViews"]
