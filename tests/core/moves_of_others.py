"""What random agents, people and other services do to a session beside its own agent."""

from random import Random
from typing import Any

from sessionary.schemas.records import SessionState
from tests.core.migration_moves import draw_migration_step
from tests.core.oracle_rig import OracleRig
from tests.core.people_moves import draw_actor, draw_answers, draw_operator_event, draw_question, operator_of
from tests.core.run_moves import RUN_IDS, draw_agent_event, draw_point_event
from tests.support.event_factory import EventFactory


class MovesOfOthers:
    """Actions of a crowd; the crowd picks agents and sends."""

    rng: Random
    rig: OracleRig

    def pick_agent(self) -> EventFactory:
        raise NotImplementedError

    def pick_active_agent(self) -> EventFactory:
        raise NotImplementedError

    def row_of(self, agent: EventFactory) -> SessionState | None:
        raise NotImplementedError

    def send(self, agent: EventFactory, event_type: str, fields: dict[str, Any], **envelope: Any) -> None:
        raise NotImplementedError

    def pass_time(self) -> None:
        raise NotImplementedError

    def send_agent_event(self) -> None:
        """Send an event of one of a session's agents."""
        agent = self.pick_active_agent()
        move = draw_agent_event(self.rng, agent.key, self.rig.fold.rows.get)
        self.send(agent, move.event_type, move.fields)

    def send_point_event(self) -> None:
        """Send events of transactions, a checkpoint with data, or a rollback to a snapshot."""
        agent = self.pick_active_agent()
        for _ in range(self.rng.randint(1, 3)):
            row = self.row_of(agent)
            if row is None:
                return
            move = draw_point_event(self.rng, row)
            run_id = self.rng.choice((None, *RUN_IDS)) if move.event_type == "checkpoint_saved" else None
            service = {"service_id": "other"} if self.rng.random() < 0.03 else {}
            self.send(agent, move.event_type, move.fields, run_id=run_id, **service)

    def migrate_session(self) -> None:
        """Send some steps of a migration: mostly the next ones, by the service that may."""
        agent = self.pick_active_agent()
        for _ in range(self.rng.randint(1, 4)):
            row = self.row_of(agent)
            if row is None:
                return
            event_type, fields, service = draw_migration_step(self.rng, row)
            self.send(agent, event_type, fields, service_id=service)
            if self.rng.random() < 0.2:
                self.pass_time()

    def step_in(self) -> None:
        """Let an operator pause, resume, answer or cancel a session."""
        agent = self.pick_active_agent() if self.rng.random() < 0.4 else self.pick_agent()
        if (row := self.row_of(agent)) is not None:
            event_type, fields = draw_operator_event(self.rng, row)
            self.send(operator_of(agent, self.rng), event_type, fields, actor=draw_actor(self.rng))

    def ask_person(self) -> None:
        agent = self.pick_active_agent()
        self.send(agent, "session_paused", draw_question(self.rng))
        for fields in draw_answers(self.rng):
            hand = operator_of(agent, self.rng) if "as_operator" in fields else agent
            self.send(hand, "session_resumed", {"snapshot_id": None, **fields}, actor=draw_actor(self.rng))
