"""A loop of equal calls, killed at every crash point and started again: one effect a call."""

import uuid
from contextlib import suppress

import pytest

from examples.workflow.workflow import open_session
from sessionary.producers import Run, SessionClient, TookEffect, current_tool_key, tool
from sessionary.producers.testing import InMemoryTransport, memory_ports
from tests.support.crash_points import Killed, Life

RESULT = ["v1", "v2", "v2"]
EDITS = ["v2", "v2", "v2"]


class Walk:
    """One memory and one file, and the processes that work with them in turn."""

    def __init__(self) -> None:
        self.memory = InMemoryTransport()
        self.session_id = str(uuid.uuid4())
        self.content = "v1"
        self.edits: dict[str, str] = {}  # by key, in order

    def live(self, dies_at: int | None = None) -> tuple[Life, list[str] | None]:
        """Let a process work from where the one before it came to; None if it was killed."""
        life = Life(dies_at)
        ports = memory_ports(self.memory, "acme", "support")
        guarded = ports._replace(**life.guard_ports(ports))
        client = SessionClient(tenant_id="acme", service_id="support", agent_id="a", ports=guarded)
        try:
            session = open_session(client, self.session_id)
            with session.run("fix", run_id="r", mode="detached", resume=True) as run:
                return life, self._loop(life, run)
        except Killed:
            return life, None
        finally:
            with suppress(Killed):
                client.close()

    def _loop(self, life: Life, run: Run) -> list[str]:
        def read_content() -> str:
            return self.content

        def write_content(text: str) -> str:
            key = current_tool_key()
            assert key is not None
            if key not in self.edits:
                self.edits[key] = self.content = text
            return text

        def find(key: str) -> TookEffect | None:
            return TookEffect(self.edits[key]) if key in self.edits else None

        read = tool(name="read", effect="read", deadline=2, wait_s=60)(life.guard("read", read_content))
        edit = tool(name="edit", effect="write", query=find, deadline=2, wait_s=60)(life.guard("edit", write_content))

        def loop() -> list[str]:
            seen = [read()]
            edit("v2")
            seen.append(read())
            edit("v2")
            return seen

        return [*run.step("turn", loop), run.step("turn", edit, "v2")]


@pytest.mark.timeout(120)
def test_a_loop_that_is_killed_anywhere_repeats_no_effect() -> None:
    points = len(Walk().live()[0].crossed)
    assert points > 40
    for dies_at in range(points):
        walk = Walk()
        life, _ = walk.live(dies_at)
        where = life.crossed[-3:]
        _, result = walk.live()
        assert result == RESULT, where
        assert list(walk.edits.values()) == EDITS, where
