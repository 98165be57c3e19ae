"""A fold with one Active session, and what its runs come to."""

from typing import Any

from sessionary.schemas.ids import run_key
from sessionary.schemas.records import AuditRecord, FinishedRun, RunState
from sessionary.stream_processors.core.run.transitions import RunRow
from tests.core.fold_rig import FoldRig
from tests.support.event_factory import TICK, EventFactory


class RunRig(FoldRig):
    """A fold; `agent` is that of the session."""

    def __init__(self, **created: Any) -> None:
        super().__init__()
        self.agent = EventFactory()
        self.start(self.agent, **created)

    def say(self, event_type: str, run_id: str | None = "r1", actor: str | None = None, **fields: Any) -> str:
        """Send an event of the agent that names a run."""
        return self.send(self.agent, event_type, {"run_id": run_id, "actor": actor}, **fields)

    def begin(self, run_id: str = "r1", mode: str = "attached", **fields: Any) -> None:
        """Start a run; it is at work then."""
        fields = {"input_json": None, "plan_json": None, **fields}
        assert self.say("run_started", run_id, mode=mode, **fields) == "applied"
        assert self.say("run_running", run_id, progress=None) == "applied"

    def run(self, run_id: str = "r1") -> RunRow | None:
        """Return the row of a run."""
        row = self.fold.rows.get(run_key(*self.agent.key, run_id))
        return row if isinstance(row, RunState | FinishedRun) else None

    def found(self, run_id: str = "r1") -> RunRow:
        """Return the row of a run that is there."""
        row = self.run(run_id)
        assert row is not None
        return row

    def open_ids(self) -> list[str]:
        """Return the runs that the session's row has as open."""
        return [run.run_id for run in self.row_of(self.agent).open_runs]

    def leap(self, ms: int) -> None:
        """Let time pass at once: no outage is found, as the stamps are of one producer's records.

        The clock gets there in steps shorter than an outage, the last of which is folded as a
        batch.
        """
        end = self.at + ms
        while self.at < end:
            self.at = min(end, self.at + 4_000)
            self.append(None, TICK)

    def jump(self, ms: int) -> None:
        """Let time pass without a record; an outage is found, and its grace passes too."""
        self.at += ms
        self.append(None, TICK)

    def reported(self) -> list[AuditRecord]:
        """Return the audit records of runs that were just written."""
        return [record for record in self.audits() if record.kind == "run"]
