"""A task whose worker dies at any crash point: the next worker continues, and repeats no effect."""

import itertools
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from sessionary.producers import (
    AsyncSession,
    Session,
    SessionClient,
    TookEffect,
    current_session,
    current_tool_key,
    tool,
)
from sessionary.producers.ports import Json
from sessionary.producers.tasks.context import TaskContext
from sessionary.producers.tasks.worker import TaskAttempt, TaskTimes
from sessionary.producers.testing import memory_client, memory_ports
from sessionary.producers.testing.memory_runs import MemoryRuns
from sessionary.schemas.events import ToolCallResolved
from sessionary.schemas.ids import derived_id
from tests.support.crash_points import Killed, Life

ITEMS = ["a", "b", "c"]
EVERY = 2
SENT = [*ITEMS, "done", "done"]
TIMES = TaskTimes(beat_s=3_600.0, lease_s=0.05)


class Walk:
    """One memory with a task, one service with effects, and the workers that have the task in turn.

    All workers have the same agent id, as those of one instance name have.
    """

    def __init__(self, *, asks: bool, is_async: bool = False) -> None:
        """`asks`: the service can be asked for a key; if not, a person decides."""
        self.client, self.memory = memory_client()
        self.session = self.client.session(user_id="u1")
        self.task_id = self.session.start_task("work", {"items": ITEMS})
        self.sent: dict[str, str] = {}  # by key, in order
        self.requests = Counter[str]()  # by text
        self.seen = Counter[str]()  # how often an item was begun
        self.sessions = set[str]()
        self.children = set[str]()
        self.decisions = 0
        self._runs = MemoryRuns(self.memory)
        self._asks = asks
        self._is_async = is_async

    def live(self, dies_at: int | None = None) -> Life:
        """Let a worker carry the task out, until it dies."""
        life, request = Life(dies_at), self.memory.tasks()[0]
        ports = memory_ports(self.memory, "acme", "service")
        assert ports.waits is not None
        pause = ports.waits.pause

        def pause_and_decide(seconds: float) -> None:
            assert pause is not None
            pause(seconds)
            self._decide()

        ports = ports._replace(waits=ports.waits._replace(pause=pause_and_decide), **life.guard_ports(ports))
        client = SessionClient(tenant_id="acme", service_id="service", agent_id="worker", ports=ports)
        clock_s = itertools.count(0.0, 0.01).__next__
        try:
            attempt = TaskAttempt(client.core, request, lambda: False, TIMES, clock_s)
            attempt.carry_out({"work": self._function_of(life)})
        except Killed:
            pass
        finally:
            with suppress(Killed):
                client.close()
        return life

    def _decide(self) -> None:
        """Decide on what no tool can be asked for, as a person does who looks at the service."""
        for call in () if self._asks else self._runs.fetch_calls(self.session.session_id, self.task_id, 1.0):
            if call.state == "unknown" and call.side_effect:
                self.decisions += 1
                known = self.sent.get(call.idem_key)
                call_id = derived_id("acme", self.session.session_id, self.task_id, call.idem_key)
                decided = ToolCallResolved(
                    *(call_id, call.tool_name, call.idem_key, "failed" if known is None else "succeeded"),
                    result_json=None if known is None else '"sent"',
                    resolved_by="ann",
                )
                self.session.emit(decided, run_id=self.task_id)

    def _function_of(self, life: Life) -> Any:
        def send(text: str) -> str:
            key = current_tool_key()
            assert key is not None
            self.requests[text] += 1
            self.sent.setdefault(key, text)
            return "sent"

        def find(key: str) -> TookEffect | None:
            return TookEffect("sent") if key in self.sent else None

        def read() -> int:
            return len(self.sent)

        query = find if self._asks else None
        send_text = tool(name="send", effect="write", deadline=2, query=query)(life.guard("send", send))
        read_count = tool(name="read", effect="read", deadline=2)(life.guard("read", read))

        def work(ctx: TaskContext, given: dict[str, Json]) -> Json:
            session = current_session()
            assert isinstance(session, Session)
            self.sessions.add(session.session_id)
            self.children.add(session.start_task("child"))
            return do_all(ctx, given)

        async def work_async(ctx: TaskContext, given: dict[str, Json]) -> Json:
            session = current_session()
            assert isinstance(session, AsyncSession)
            self.sessions.add(session.session_id)
            self.children.add(await session.start_task("child"))
            return do_all(ctx, given)

        def do_all(ctx: TaskContext, given: dict[str, Json]) -> Json:
            first = ctx.run.step("prepare", read_count)
            for item in ctx.run.items(given["items"], name="list", every=EVERY):
                self.seen[item] += 1
                send_text(item)
                ctx.save_checkpoint({"at": item}, f"sent {item}")
            last = [send_text("done"), send_text("done")]  # equal calls are two
            return [first, ctx.run.step("count", read_count), *last]

        return work_async if self._is_async else work


@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [6, 1], ids=["each sixth point", "all points"])
@pytest.mark.parametrize("asks", [True, False], ids=["asked", "a person decides"])
def test_a_task_whose_worker_dies_anywhere_continues_and_repeats_no_effect(asks: bool, step: int) -> None:
    points = len(Walk(asks=asks).live().crossed)
    assert points > 80
    decided = 0
    for dies_at in range(0, points, step):
        walk = Walk(asks=asks, is_async=dies_at % 8 == 0)
        where = walk.live(dies_at).crossed[-3:]
        walk.live()
        found = walk.client.get_task_results(walk.task_id)
        assert found.get("result") == [0, len(SENT), "sent", "sent"], (dies_at, where, found)
        assert list(walk.sent.values()) == SENT, where
        assert walk.requests == Counter(SENT), where
        assert sum(walk.seen.values()) - len(ITEMS) <= EVERY, where
        assert walk.sessions == {walk.session.session_id}
        # The child was asked for once, and none came of an event that does not count.
        assert [request.run_id for request in walk.memory.tasks()[1:]] == [*walk.children]
        assert len(walk.children) == 1
        decided += walk.decisions
    assert (decided == 0) == asks
