"""Clients in memory whose events the processor's own fold judges."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.control.http_control import parse_changes, parse_session
from sessionary.producers.errors import SessionLost
from sessionary.producers.ports import KnownSession, OnReceipt, OutRecord, Ports, Receipt, SessionChanges, SessionView
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.api.session_poll import SessionQuestion, find_difference
from sessionary.stream_processors.api.session_questions import AskedOwner, Question, session_document
from sessionary.stream_processors.core.model import RecentVerdicts
from tests.core.fold_rig import FoldRig
from tests.support.waiting import PATIENCE_S

_CALLER = Caller(tenant="acme", principal="acme")


class _FirstPoll:
    """`PollTimer` that lets a client ask once."""

    def start_polls(self, poll: Callable[[], None]) -> None:
        poll()


class JudgedMemory(InMemoryTransport):
    """The outside of clients of tenant `acme`; `rig` is the fold, of one partition."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.rig = FoldRig()
        self.outcomes: list[str] = []
        self.polled: list[Sequence[KnownSession]] = []
        self.poll_error: Exception | None = None
        self._recent = RecentVerdicts()

    def client(self, service_id: str = "billing", agent_id: str = "agent-1") -> tuple[SessionClient, list[Exception]]:
        """Return a client, and the errors that it reports."""
        errors: list[Exception] = []
        return self.polling_client(service_id, agent_id, poll_interval_s=0.0, on_error=errors.append), errors

    def polling_client(
        self,
        service_id: str = "billing",
        agent_id: str = "agent-1",
        poll_interval_s: float | None = None,
        **callbacks: Any,
    ) -> SessionClient:
        """Return a client that asks about its sessions.

        Without an interval it has asked once, which checks its token, and asks again when a test
        polls. With one, a thread asks from then on.
        """
        interval_s = 3_600.0 if poll_interval_s is None else poll_interval_s
        settings = ProducerSettings.from_env({}, heartbeat_interval_s=60.0, poll_interval_s=interval_s)
        ports = memory_ports(self)

        def tenant_ports(tenant_id: str, settings: ProducerSettings) -> Ports:
            assert ports.tenant_ports is not None
            return ports.tenant_ports(tenant_id, settings)._replace(polls=self, poll_timer=None)

        timer = _FirstPoll() if poll_interval_s is None else None
        return SessionClient(
            tenant_id="acme",
            service_id=service_id,
            agent_id=agent_id,
            settings=settings,
            ports=ports._replace(polls=self, poll_timer=timer, tenant_ports=tenant_ports),
            **callbacks,
        )

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
        owner: Any = SimpleNamespace(state=self.rig.fold, recent_verdicts=self._recent)
        question = Question(key, 0, None if after is None else after[1], 0, _CALLER)
        return parse_session(session_document(row, AskedOwner(question, owner)))

    def forget_outcomes(self) -> None:
        """Know of the last records no more than another worker does."""
        self._recent = RecentVerdicts()

    def poll_sessions(self, known: Sequence[KnownSession], timeout_s: float) -> SessionChanges:
        self.polled.append(known)
        if self.poll_error is not None:
            raise self.poll_error
        owner: Any = SimpleNamespace(state=self.rig.fold, recent_verdicts=self._recent)
        found: list[dict[str, Any]] = []
        for each in known:
            after = None if each.after is None else each.after[1]
            key = SessionKey("acme", each.session_id)
            asked = (each.state, each.epoch, each.holder, each.rejected_after, after)
            question = SessionQuestion(key, 0, *asked, {}, each.producer_id, each.last_seq, each.agents)
            if (document := find_difference(owner, question, _CALLER)) is not None:
                found.append(document)
        return parse_changes({"positions": {"0": self.rig.offset}, "sessions": found})


def copy_id(client: SessionClient, original: SessionClient) -> None:
    """Give a client the producer id of another one, as in a copied virtual machine."""
    client.core.producer_id = client.core.sequences._producer_id = original.producer_id


class HeldReceipts(JudgedMemory):
    """Judges events at once, and while `hold` is set keeps their receipts until `deliver`."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = False
        self._held: list[Callable[[], None]] = []

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Judge a record; its receipt may be kept."""
        if not self.hold or on_receipt is None:
            super().send(record, on_receipt)
            return
        super().send(record, lambda receipt: self._held.append(partial(on_receipt, receipt)))

    def deliver(self) -> None:
        """Give the receipts that were kept, in their order."""
        held, self._held = self._held, []
        for give in held:
            give()


class LateAnswers(HeldReceipts):
    """Holds the answer to the next question about a session, once `hold_answer` was called.

    Attributes:
        asked: Set once there is an answer that is held.
        answer: Set it to give that answer, as it was then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = threading.Event(), threading.Event()
        self._holds = False

    def hold_answer(self) -> None:
        """Hold the next answer."""
        self._holds = True

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Return the session; the answer may be held."""
        view = super().fetch_session(session_id, after, timeout_s)
        if self._holds:
            self._holds = False
            self.asked.set()
            assert self.answer.wait(PATIENCE_S)
        return view
