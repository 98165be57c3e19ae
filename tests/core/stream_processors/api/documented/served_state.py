"""A worker's API over a state that has every kind of row, in a thread of its own."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sessionary.schemas.ids import derived_id, new_task_id, partition_of
from sessionary.schemas.records import Position
from sessionary.schemas.types import ErrorInfo
from sessionary.stream_processors.core.model import RecentVerdicts
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.partition_owner import CommitNotifications, RowWatch
from tests.core.oracle_rig import SETTINGS, OracleRig
from tests.core.stream_processors.api.api_server import FakeAssignment, running_server
from tests.support.event_factory import EventFactory

PARTITIONS = 3  # the first is open, the second halted, the third another worker's that does not answer
_SERVED, _HALTED = 0, 1
_SKIPPED_OFFSET = 5


class StateOwner:
    """Owns a partition that is open with the state of a rig, or halted."""

    def __init__(self, partition: int, state: Any, halted: Halted | None = None) -> None:
        self.partition, self.state, self.halted = partition, state, halted
        self.is_open = self.is_readable = halted is None
        self.halted_at_ms = None if halted is None else 1_700_000_000_000
        self.recent_verdicts = RecentVerdicts()
        self.began_reading = True
        self.accesses: list[Any] = []
        self.commits, self.notifications, self.decision_left = 1, BriefNotifications(), None

    @property
    def committed_s(self) -> float:
        return time.monotonic()

    @property
    def position(self) -> Position:
        position: Position = self.state.position
        return position

    async def wait_until(self, is_reached: Callable[[Position], bool], timeout_s: float) -> bool:
        return is_reached(self.position)

    async def wait_until_committed(self, offset: int, timeout_s: float) -> bool:
        return self.is_open and offset < self.position.next_offset

    async def wait_until_merged(self, timeout_s: float) -> bool:
        return True  # no transaction is under way


class BriefNotifications(CommitNotifications):
    """Lets a follower read one state, and then loses the partition: a whole answer is read here."""

    @contextmanager
    def watch_row(self, key: bytes) -> Iterator[RowWatch]:
        self.is_over = False
        with super().watch_row(key) as watch:
            asyncio.get_running_loop().call_soon(self.end)
            yield watch


class StateAssignment(FakeAssignment):
    """A partition that is opened again is halted as before."""

    def reopen_partition(self, partition: int, decision: object = None) -> None:
        assert self.owners[partition].halted is not None


class ServedState:
    """A session with runs, turns and a task; one that is archived; one of another tenant.

    `values`: for each name in a path, ids of what is there, of what was there, and of what is not.
    """

    def __init__(self) -> None:
        self._rig = OracleRig(SETTINGS._replace(partitions=1))
        gone, alive, foreign = (
            agent_named(name, tenant) for name, tenant in (("gone", "acme"), ("alive", "acme"), ("foreign", "zeta"))
        )
        self._rig.start(gone)
        self._rig.send(gone, "session_terminated", reason="closed")
        assert self._rig.advance(300_000, step_ms=5_000) == ["T14 archived"]
        for agent in (alive, foreign):
            self._rig.start(agent)
        self._fill(alive)
        task_id = new_task_id(alive.key)
        self._rig.send(alive, "run_queued", {"run_id": task_id}, mode="detached")
        unknown = agent_named("unknown")
        self.values = {
            "session_id": [agent.key.session_id for agent in (alive, gone, foreign, unknown)],
            "run_id": ["done", "open", "absent"],
            "name": ["plan", "read", "absent"],
            "idem_key": ["k1", "k2", "absent"],
            "task_id": [task_id, new_task_id(foreign.key), derived_id("no", "task")],
            "agent_id": ["researcher_1", "writer_1", "absent"],
            "partition": [*range(PARTITIONS + 1)],
        }

    def _fill(self, agent: EventFactory) -> None:
        """Let a session have two runs with steps, and calls, artifacts and turns of all kinds."""
        error = ErrorInfo("retryable", "broken", "It broke")
        for run_id in ("open", "done"):
            run = {"run_id": run_id}
            step = {**run, "step_id": f"{run_id}-plan-1"}
            events: list[tuple[str, dict[str, str], dict[str, Any]]] = [
                ("run_started", run, {"mode": "detached"}),
                ("run_running", run, {"progress": 0.5}),
                ("step_started", step, {"name": "plan", "attempt": 1}),
                ("step_succeeded", step, {"name": "plan", "attempt": 1, "output_json": "[1]"}),
                ("step_started", {**run, "step_id": f"{run_id}-read-1"}, {"name": "read", "attempt": 1}),
                ("artifact_created", run, {"artifact_id": "a1"}),
                ("artifact_chunk_appended", run, {"artifact_id": "a1", "offset": 0, "length": 5}),
                ("message_appended", run, {"role": "tool", "content": "5 bytes"}),
                ("tool_call_started", run, {"idem_key": "k1", "side_effect": True, "queryable": True}),
                ("tool_call_started", run, {"idem_key": "k2", "side_effect": False}),
                ("tool_call_failed", run, {"idem_key": "k2", "error": error}),
            ]
            for event_type, envelope, fields in events:
                self._apply(agent, event_type, envelope, **fields)
        self._apply(agent, "tool_call_succeeded", {"run_id": "done"}, idem_key="k1", result_json='"paid"')
        self._apply(agent, "run_completed", {"run_id": "done"}, result_json="1", artifact_id="a1")
        self._apply(agent, "artifact_created", {}, artifact_id="a2")
        self._apply(agent, "artifact_completed", {}, artifact_id="a2", size_bytes=7, sha256="ab" * 32)
        self._apply(agent, "message_appended", {}, role="user", content=None, artifact_id="a2")
        for idem_key in ("k1", "k2"):
            self._apply(agent, "tool_call_started", {}, idem_key=idem_key)
        self._apply(agent, "tool_call_failed", {}, idem_key="k2", error=error)
        for agent_id, role in (("researcher_1", "researcher"), ("writer_1", "writer")):
            self._apply(agent, "agent_registered", {}, agent_id=agent_id, role=role)
            named = {"agent_id": agent_id, "task": "work", "result_json": "[1]"}
            self._apply(agent, "agent_task_updated", {}, completed=role == "researcher", **named)
        synced = {"from_agent_id": "researcher_1", "to_agent_id": "writer_1", "sync_type": "handoff"}
        self._apply(agent, "context_synced", {}, **synced)
        assert self._rig.send(agent, "session_started") == "rejected illegal_transition"

    def _apply(self, agent: EventFactory, event_type: str, envelope: dict[str, str], **fields: Any) -> None:
        if event_type.startswith("tool_call_"):
            fields["try_number"] = 1
        if event_type == "tool_call_started":
            fields["limit_ms"] = 60_000
        outcome = self._rig.send(agent, event_type, envelope, **fields)
        assert outcome == "applied", (event_type, fields, self._rig.outcomes[-1].records_on("rejected"))

    @contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        """Serve the API until the block ends; yields its URL."""
        assignment: Any = StateAssignment()
        fault = Halted("log_gap", "partition 1: next is offset 5, but the log holds 7 to 9", offset=_SKIPPED_OFFSET)
        assignment.owners = {
            _SERVED: StateOwner(_SERVED, self._rig.fold),
            _HALTED: StateOwner(_HALTED, self._rig.fold, fault),
        }
        started: queue.Queue[str] = queue.Queue()
        ending = asyncio.Event()
        loop = asyncio.new_event_loop()

        async def run() -> None:
            async with running_server(folder, assignment, partitions=PARTITIONS) as server:
                started.put(server.url)
                await ending.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=[run()])
        thread.start()
        try:
            yield started.get(timeout=60)
        finally:
            loop.call_soon_threadsafe(ending.set)
            thread.join(60)
            loop.close()


def agent_named(name: str, tenant: str = "acme") -> EventFactory:
    """Return an agent of a session in the open partition."""
    agents = (EventFactory(f"{name}-{n}", tenant) for n in range(100))
    return next(agent for agent in agents if partition_of(agent.key.encoded(), PARTITIONS) == _SERVED)
