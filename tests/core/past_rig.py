"""A fold whose log and audit trail are kept, to tell a session's state at a point of it."""

from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, Position
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.core.past import PastLog, PastState, Point, state_at
from tests.core.fold_rig import FoldRig
from tests.support.event_factory import EventFactory


class PastRig(FoldRig):
    """Each record is appended 1 ms after the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[LogRecord] = []
        self.trail: list[AuditRecord] = []

    def append_batch(self, *records: LogRecord) -> BatchResult:
        """Fold records as one batch, and keep them and their audit records."""
        self.log += records
        outcome = super().append_batch(*records)
        self.trail += self.audits()
        self.at += 1
        return outcome

    def past(self, agent: EventFactory, point: Point) -> PastState:
        """Return the state of an agent's session at a point."""
        return self.read(agent.key, 0, point, self.fold.position)

    def read(
        self, session: SessionKey, partition: int, point: Point, end: Position, begun_ms: int | None = None
    ) -> PastState:
        """Read as `PastReader.state_at` does, from what is kept."""
        state = self.fold
        past = PastLog(self.log, self.trail, end, state.settings, state.judge, state.decoder)
        return state_at(past, session, partition, point)
