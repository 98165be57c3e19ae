"""A client whose outside waits at a gate, and verbs that are cancelled there."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sessionary.producers import ArtifactLibrary, AsyncSessionClient, SessionClient
from sessionary.producers.artifacts.stores import FolderStore
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt, SessionView
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.producers.testing.memory_runs import MemoryRuns, _AskedLog


class Gate:
    """Lets all pass until it is shut; then all wait until it is open again."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.waiting = threading.Event()

    def pass_through(self) -> None:
        if not self._open.is_set():
            self.waiting.set()
            assert self._open.wait(30)

    def shut(self) -> None:
        self.waiting.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    @property
    def is_shut(self) -> bool:
        return not self._open.is_set()


class GatedMemory(InMemoryTransport):
    """Behind a gate: under policy `block` what is sent, else acknowledgements; always answers."""

    def __init__(self, gate: Gate, *, may_block: bool) -> None:
        super().__init__(partitions=1)
        self._gate = gate
        self._blocks = may_block
        self._held: list[tuple[OnReceipt, Receipt]] = []
        self._holding = threading.Lock()  # what is held while the gate opens would be held for ever

    @property
    def may_block(self) -> bool:
        return self._blocks

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        if self._blocks:
            self._gate.pass_through()

        def hold_receipt(receipt: Receipt) -> None:
            if on_receipt is None:
                return
            with self._holding:
                if is_held := self._gate.is_shut:
                    self._held.append((on_receipt, receipt))
            if is_held:
                self._gate.waiting.set()
            else:
                on_receipt(receipt)

        super().send(record, hold_receipt)

    def open_gate(self) -> None:
        with self._holding:
            self._gate.open()
            held, self._held = self._held, []
        for on_receipt, receipt in held:
            on_receipt(receipt)

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        self._gate.pass_through()
        return super().fetch_session(session_id, after, timeout_s)


class GatedRuns(MemoryRuns):
    """Answers about runs, behind the gate."""

    def __init__(self, memory: InMemoryTransport, gate: Gate) -> None:
        super().__init__(memory)
        self._gate = gate

    def _ask_log(self) -> _AskedLog:
        self._gate.pass_through()
        return super()._ask_log()


class GatedStore(FolderStore):
    """Bodies of artifacts, behind the gate."""

    def __init__(self, folder: Path, gate: Gate) -> None:
        super().__init__(folder)
        self._gate = gate

    def write(self, name: str, body: bytes) -> None:
        self._gate.pass_through()
        super().write(name, body)


class Rig(NamedTuple):
    """A client whose outside waits at a gate."""

    client: AsyncSessionClient
    memory: GatedMemory
    gate: Gate
    errors: list[Exception]


def new_rig(folder: Path, *, may_block: bool) -> Rig:
    gate, errors = Gate(), list[Exception]()
    memory = GatedMemory(gate, may_block=may_block)
    client = SessionClient(
        tenant_id="acme",
        service_id="shop",
        agent_id="own",
        on_error=errors.append,
        on_rejected=lambda _: None,
        ports=memory_ports(memory)._replace(runs=GatedRuns(memory, gate)),
        artifacts=ArtifactLibrary(GatedStore(folder, gate)),
    )
    return Rig(AsyncSessionClient.wrap(client), memory, gate, errors)


def open_soon(rig: Rig) -> None:
    """Open the gate from another thread: the last event of a session is sent in place."""
    threading.Timer(0.02, rig.memory.open_gate).start()


async def cancel_while_it_waits(rig: Rig, call: Callable[[], Awaitable[object]]) -> bool:
    """Call a verb behind the gate and cancel it there; False if it waited for nothing."""

    async def run_call() -> object:
        return await call()

    rig.gate.shut()
    task = asyncio.create_task(run_call())
    await asyncio.sleep(0)
    if task.done():
        return False
    assert await asyncio.to_thread(rig.gate.waiting.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return True
