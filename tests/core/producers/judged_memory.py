"""Clients in memory whose events the processor's own fold judges."""

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.control.http_control import parse_session
from sessionary.producers.errors import SessionLost
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt, SessionView
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import SessionState
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.api.sessions import Question, session_document
from sessionary.stream_processors.api.verdicts import verdict_document
from sessionary.stream_processors.core.recent_outcomes import RecentOutcomes
from tests.core.fold_rig import FoldRig


class JudgedMemory(InMemoryTransport):
    """The outside of clients of tenant `acme`; `rig` is the fold, of one partition."""

    def __init__(self, rules: int = NEWEST_RULES.version) -> None:
        super().__init__(partitions=1)
        self.rig = FoldRig()
        self.outcomes: list[str] = []
        self._recent = RecentOutcomes()
        if rules == NEWEST_RULES.version:
            self.rig.activate(NEWEST_RULES)

    def client(self, service_id: str = "billing", agent_id: str = "agent-1") -> tuple[SessionClient, list[Exception]]:
        """Return a client, and the errors that it reports."""
        errors: list[Exception] = []
        settings = ProducerSettings.from_env({}, heartbeat_interval_s=60.0)
        client = SessionClient(
            tenant_id="acme",
            service_id=service_id,
            agent_id=agent_id,
            settings=settings,
            on_error=errors.append,
            ports=memory_ports(self),
        )
        return client, errors

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        offset = self.rig.offset
        self.outcomes.append(self.rig.append(record.key, record.value, record.headers))
        assert self.rig.outcome is not None
        self._recent.add_batch(self.rig.outcome.judged)
        if on_receipt is not None:
            on_receipt(Receipt(0, offset))

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        key = SessionKey("acme", session_id)
        row = self.rig.fold.rows.get(key.encoded())
        if not isinstance(row, SessionState):
            raise SessionLost(f"session {session_id} is not known")
        verdict = None if after is None else verdict_document(self._recent, row, key.encoded(), *after)
        question = Question(key, 0, None if after is None else after[1], 0)
        return parse_session(session_document(row, question, self.rig.fold, verdict))


__all__ = ["JudgedMemory"]
