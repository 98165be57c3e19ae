"""The agents: supervised processes, each with a spool and a journal that survive its kills."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sessionary.infra.local.supervisor import PartChange, Supervisor
from tests.auditor.decoding import Row
from tests.auditor.evidence import Lifetime
from tests.chaos.schedule import AGENTS
from tests.chaos.small_disk import FULL_FLAG
from tests.chaos.stack import ChaosStack, now_ms
from tests.support.waiting import wait_until

# Agent → tenant, service. Each has its own, so no clean-up waits for another agent's rebalance.
_ROLES = dict(
    zip(AGENTS, (("acme", "research"), ("acme", "support"), ("globex", "billing"), ("initech", "coding")), strict=True)
)
_SPOOL_BYTES_CRAMPED = 256 << 10  # small segments, so that disk space is allocated every few seconds
_STOP_GRACE_S = 60.0
_IDLE_S = 150.0
_FURTHER_S_MAX = 120.0


class Load:
    """All agents. `start` returns at once; they run until `until_s` (epoch) and await `stop`.

    `extend` lets them go on for `further_s`.
    """

    def __init__(self, stack: ChaosStack, *, seed: int, rate: float, seconds: float) -> None:
        self._stack, self._seed, self._rate = stack, seed, rate
        self.until_s, self.further_s = time.time() + seconds, min(seconds, _FURTHER_S_MAX)
        self.folders = {name: stack.folder / "agents" / name for name in AGENTS}
        self.ends: dict[str, list[int]] = {name: [] for name in AGENTS}
        for name, folder in self.folders.items():
            folder.mkdir(parents=True)
            if name in stack.disks:
                (folder / "spool").symlink_to(stack.disks[name].folder)
        self._supervisor = self._new_supervisor()

    def _new_supervisor(self) -> Supervisor:
        stack, parts = self._stack, []
        for name, (tenant, service) in _ROLES.items():
            folder = self.folders[name]
            more: dict[str, str] = {"CLOSE_TIMEOUT_S": "45"}
            disk = stack.disks.get(name)
            if disk is not None:
                more["SPOOL_BYTES_MAX"] = str(_SPOOL_BYTES_CRAMPED)
            argv = [sys.executable, "-m", "tests.chaos.agent", "--name", name, "--folder", str(folder)]
            argv += ["--tenant", tenant, "--service", service, "--seed", str(self._seed)]
            argv += ["--rate", str(self._rate / len(AGENTS)), "--until", str(self.until_s)]
            part = stack.part(f"agent-{name}", argv, None, more)
            if disk is not None and not disk.mounted:
                part = type(part)(part.name, part.argv, part.log_path, {**(part.env or {}), FULL_FLAG: str(disk.flag)})
            parts.append(part)
        return Supervisor(parts, self._note_exit, grace_s=_STOP_GRACE_S)

    def start(self) -> None:
        """Start all agents."""
        self._supervisor.start()

    def extend(self) -> None:
        """Let new agents go on, once all have finished their plans. Blocks."""
        wait_until(self.is_idle, _IDLE_S, "the agents to finish their plans")
        for ends in self.ends.values():
            ends.append(now_ms())
        self._supervisor.stop()
        self.until_s = time.time() + self.further_s
        self._supervisor = self._new_supervisor()
        self._supervisor.start()

    def stop(self) -> None:
        """Stop all agents; their clients flush and close. Blocks until all have ended."""
        self._supervisor.stop()

    def pid(self, name: str) -> int | None:
        """Return the agent's process id; None if it does not run."""
        return self._supervisor.pid(f"agent-{name}")

    def pids(self) -> dict[str, int | None]:
        """Return the process id of each agent; None if it does not run."""
        return {f"agent-{name}": self.pid(name) for name in AGENTS}

    def kill(self, name: str) -> None:
        """Kill the agent with SIGKILL, as soon as it runs."""
        os.killpg(wait_until(lambda: self.pid(name) or 0, 20, f"agent {name} to run"), signal.SIGKILL)

    def read_status(self, name: str) -> Row:
        """Return the agent's last status; empty before the first."""
        with contextlib.suppress(OSError, ValueError):
            found: Row = json.loads((self.folders[name] / "status.json").read_text())
            return found
        return {}

    def is_idle(self) -> bool:
        """Return True if every running agent has finished its plan and has nothing outstanding."""
        statuses = {name: self.read_status(name) for name in AGENTS}
        return all(
            status.get("done") and status["pid"] == self.pid(name) and status["outstanding"] == 0
            for name, status in statuses.items()
        )

    def event_count(self) -> int:
        """Return the number of journal lines: events that were delivered or dropped."""
        return sum(path.read_bytes().count(b"\n") for path in self.journal_paths())

    def journal_paths(self) -> list[Path]:
        """Return the paths of the clients' journals."""
        return sorted(path for folder in self.folders.values() for path in folder.glob("journal-*.ndjson"))

    def spool_segments(self, name: str) -> list[Path]:
        """Return the files in an agent's spool, including those of dead producers."""
        return sorted((self.folders[name] / "spool").glob("*/*.seg"))

    def planned_sessions(self) -> list[Row]:
        """Return all sessions that the agents planned."""
        return [row for folder in self.folders.values() for row in _read_plans(folder)]

    def lifetimes(self) -> list[Lifetime]:
        """Return when each agent process ran; a running one ends now."""
        found = []
        for name, folder in self.folders.items():
            ends = [*self.ends[name], now_ms()]
            for path in folder.glob("plan-*.json"):
                started = int(json.loads(path.read_text())["planned_ms"])
                found.append(Lifetime(name, started, min(end for end in ends if end >= started)))
        return found

    def _note_exit(self, change: PartChange) -> None:
        if change.exit_code is not None:
            self.ends[change.name.removeprefix("agent-")].append(now_ms())


def _read_plans(folder: Path) -> Iterator[Row]:
    for path in folder.glob("plan-*.json"):
        plan = json.loads(path.read_text())
        for session in plan["sessions"]:
            yield {**session, "planned_ms": plan["planned_ms"]}
