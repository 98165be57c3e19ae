"""What simulated agents do rarely: much at once."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from sessionary.schemas.limits import CONVERSATION_TURNS_MAX
from sessionary.schemas.records import SessionState
from sessionary.schemas.topics import VALUE_BYTES_MAX
from tests.core.run_moves import LONG, WORK
from tests.simulation.clients import Process, Session

if TYPE_CHECKING:
    from tests.simulation.world import World


class LargeMoves:
    """Actions of a pool of agents."""

    world: World
    rng: Random
    sessions: list[Session]

    def pick_process(self) -> Process:
        raise NotImplementedError

    def _pick_active_session(self) -> Session:
        raise NotImplementedError

    def join_many_producers(self) -> None:
        """Let more processes send to a session than its ledger has room for."""
        session = self.sessions[0]
        for n in range(66):
            process = Process(self.world, f"many-{n}", session.service)
            process.ask_state(session)
            process.queue_event(session, self.rng.choice(WORK), {})
            process.deliver()

    def send_too_large_state(self) -> None:
        """Send a state that is larger than the limit."""
        process, session = self.pick_process(), self.sessions[0]
        self.world.cluster.work(100, session.partition)
        known = process.ask_state(session)
        if isinstance(known, SessionState):
            fields = {"base_version": known.version, "new_version": known.version + 1}
            process.queue_event(session, "state_updated", {**fields, "state_json": "x" * (VALUE_BYTES_MAX + 1)})
            process.deliver()

    def hold_conversation(self) -> None:
        """Send so many messages to a session that their turns take the rows of older ones."""
        process, session = self.pick_process(), self._pick_active_session()
        self.world.cluster.work(100, session.partition)
        process.ask_state(session)
        for n in range(CONVERSATION_TURNS_MAX + 5):
            process.queue_event(session, "message_appended", {"content": LONG if n % 3 == 0 else "hello"})
        process.deliver()
