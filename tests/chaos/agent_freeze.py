"""Freezes an agent inside a tool call, lets another service take its session over, and wakes it.

Both agents are processes of their own (`fenced_agents`). The call has an effect outside, which a
small service counts by the call's key.
"""

import json
import signal
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from examples.workflow.services import Services
from sessionary.infra.local.process import Child, tail
from tests.auditor.decoding import Row
from tests.chaos.fenced_agents import SERVICES, write_file
from tests.chaos.schedule import AFTER_EFFECT, Fault
from tests.chaos.stack import TENANTS, ChaosStack, now_ms
from tests.support.waiting import wait_until

_STEP_S = 240.0
_TAIL_LINES = 5


class Reported(NamedTuple):
    """What agents and service tell of a freeze that is over."""

    source: Row
    target: Row
    orders: int  # that were placed under the key
    requests: int  # to place one


def find_agent_faults(frozen_at: str, reported: Reported) -> list[str]:
    """Return what is wrong with what two agents and a service tell; pure."""
    source, target = reported.source, reported.target
    found, left = target.get("found"), target.get("left")
    faults = []
    if found != {"by": "source", "step": 1}:
        faults.append(f"the target found the content {found}")
    if left != {"by": "target", "step": 3}:
        faults.append(f"the target left the content {left}")
    if not source.get("fenced_by"):
        faults.append("the source was not notified that it is fenced off")
    failures = dict(source.get("failures", {}))
    if failures.pop("sync", None) is not None:
        faults.append("the source's sync raised no SessionFenced")
    failures.pop("order", None)  # its call may have been resolved by the target meanwhile
    for verb, error in sorted(failures.items()):  # one that did not fail was sent before it was told
        if not error.startswith("SessionFenced"):
            faults.append(f"the source's {verb} raised {error}, and no SessionFenced")
    if reported.orders != 1:
        faults.append(f"{reported.orders} orders were placed")
    if frozen_at == AFTER_EFFECT and reported.requests != 1:
        faults.append(f"an order that was placed was asked for {reported.requests} times")
    return faults


class Freeze:
    """One freeze: `hold` ends with the source's SIGCONT, `finish` when both agents have ended."""

    def __init__(self, stack: ChaosStack, folder: Path, claim: Row, services: Services, frozen_at: str) -> None:
        self._stack, self._folder, self._claim, self._services = stack, folder, claim, services
        self._frozen_at = frozen_at
        folder.mkdir(parents=True)
        plan = {**claim, "url": services.url, "freeze": frozen_at, "run_id": str(uuid.uuid4())}
        write_file(folder / "claim.json", plan)
        self._agents = {who: self._start_agent(who) for who in SERVICES}
        self.resumed_ms = 0
        self.silent_s = 0.0

    def _start_agent(self, who: str) -> Child:
        argv = [sys.executable, "-m", "tests.chaos.fenced_agents", who, str(self._folder)]
        token = self._stack.tokens[self._claim["tenant_id"]]
        part = self._stack.part(f"frozen-{self._folder.name}-{who}", argv, None, {"API_TOKEN": token})
        return Child(part.argv, part.log_path, part.env)

    def read(self, who: str) -> Row:
        """Return what an agent has reported so far."""
        path = self._folder / f"{who}.json"
        found: Row = json.loads(path.read_text()) if path.exists() else {}
        return found

    def hold(self) -> None:
        """Freeze the source inside its call until the target has finished the call. Blocks."""
        self._wait_reported("target", "ready")
        self._wait_reported("source", "in_call")
        source = self._agents["source"]
        source.signal(signal.SIGSTOP)
        wait_until(lambda: _is_stopped(source.pid), _STEP_S, "the source to stand still")
        began_s = time.monotonic()
        try:
            (self._folder / "claim").touch()
            self._wait_reported("target", "finished")
        finally:
            self.silent_s = time.monotonic() - began_s
            (self._folder / "go").touch()
            self.resumed_ms = now_ms()
            source.signal(signal.SIGCONT)

    def is_fenced(self) -> bool:
        """Return True once the source knows that it is fenced off."""
        return bool(self.read("source").get("fenced_by"))

    def finish(self) -> list[str]:
        """Let both agents end; return what is wrong with what they tell. Blocks."""
        self._wait_reported("source", "done")
        (self._folder / "end").touch()
        self._wait_reported("target", "done")
        key = self._claim["key"]
        orders = sum(order["order"] == key for order in self._services.sent.all())
        requests = self._services.requests.count(key)
        return find_agent_faults(self._frozen_at, Reported(self.read("source"), self.read("target"), orders, requests))

    def describe(self) -> str:
        """Return what is worth telling of the freeze."""
        target = self.read("target")
        early = target.get("too_early", 0)
        return f"frozen for {self.silent_s:.1f} s, epoch {target.get('epoch')} after {early} claims that came too early"

    def close(self) -> None:
        """Kill what is left of both agents."""
        for agent in self._agents.values():
            agent.signal(signal.SIGCONT)
            agent.kill()

    def _wait_reported(self, who: str, what: str) -> None:
        agent = self._agents[who]

        def is_reported() -> bool:
            if self.read(who).get(what):
                return True
            if agent.exit_code is not None:
                raise AssertionError(f"the {who} ended: {' | '.join(tail(agent.log, _TAIL_LINES).splitlines())}")
            return False

        wait_until(is_reported, _STEP_S, f"the {who} to tell {what}")


class AgentFreezes:
    """All freezes of a run; `claims` are the sessions that were taken over. Thread-safe."""

    def __init__(self, stack: ChaosStack, seed: int) -> None:
        self._stack, self._seed = stack, seed
        self._folder = stack.folder / "freezes"
        self._folder.mkdir()
        self._lock = threading.Lock()
        self._services = Services(self._folder)
        self._thread = threading.Thread(target=self._services.serve_forever, name="orders", daemon=True)
        self._thread.start()
        self._freezes: list[Freeze] = []
        self.claims: list[Row] = []
        self.faults: list[str] = []

    def begin(self, fault: Fault) -> Freeze:
        """Start the agents of one freeze."""
        with self._lock:
            number = len(self.claims)
            name = f"freeze:{self._seed}:{number}"
            claim = {
                "tenant_id": TENANTS[0],
                "session_id": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
                "key": f"order-{number}",
                **SERVICES,
            }
            freeze = Freeze(self._stack, self._folder / str(number), claim, self._services, fault.target)
            self.claims.append(claim)
            self._freezes.append(freeze)
        return freeze

    def end(self, freeze: Freeze) -> None:
        """Wait until the agents of a freeze have ended; note what is wrong."""
        faults = freeze.finish()
        with self._lock:
            self.faults += faults

    def journal_paths(self) -> Sequence[Path]:
        """Return the paths of the clients' journals."""
        return sorted(self._folder.glob("*/journal-*.ndjson"))

    def close(self) -> None:
        """Kill what is left of the agents, and close the service."""
        for freeze in self._freezes:
            freeze.close()
        self._services.shutdown()
        self._services.server_close()
        self._thread.join()


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
