"""What a session reads of the processor without adopting it: execution, artifacts, its state."""

from collections.abc import Sequence

from sessionary.producers.errors import StateMismatch
from sessionary.producers.run_ports import ArtifactView, ExecutionView
from sessionary.producers.session.core import SessionCore
from sessionary.schemas.ids import content_hash


class RecordedReads:
    """The questions about one session. Thread-safe; each waits as `Session.sync` does."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def execution(self) -> ExecutionView:
        """Return the session's open runs, their steps and tool calls."""
        session_id = self._core.session_id
        return self._core.read_judged(
            lambda runs, after, timeout_s: runs.fetch_execution(session_id, after, timeout_s), ExecutionView((), ())
        )

    def artifacts(self, run_id: str | None) -> Sequence[ArtifactView]:
        """Return the artifacts of a run in the order of their creation."""
        session_id = self._core.session_id
        return self._core.read_judged(
            lambda runs, after, timeout_s: runs.fetch_artifacts(session_id, run_id, after, timeout_s), ()
        )

    def verify(self) -> None:
        """Compare version and hash of the state that is known here with the processor's."""
        core, mine = self._core, self._core.view
        while True:
            with core.lock:
                known = mine.version, mine.state_json
            view = core.fetch_judged(core.services.control.fetch_session)
            if (view.version, view.state_json) == known:
                return
            if known == (mine.version, mine.state_json):  # else another thread updated it meanwhile
                committed = view.version, content_hash(view.state_json)
                raise StateMismatch(core.session_id, (known[0], content_hash(known[1])), committed)
