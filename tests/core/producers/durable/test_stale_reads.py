"""Resuming a run although reads are late: the processor shows an event only if it is waited for."""

from sessionary.producers import SessionClient, TookEffect, tool
from sessionary.producers.run_ports import LogPosition, RunView
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.producers.testing.memory_runs import MemoryRuns
from tests.core.producers.durable.test_tool import crash_in_call


class LateRuns(MemoryRuns):
    """Tells of a run what it told first, unless an event is waited for."""

    def __init__(self, memory: InMemoryTransport) -> None:
        super().__init__(memory)
        self._first: RunView | None = None

    def fetch_run(self, session_id: str, run_id: str, after: LogPosition | None, timeout_s: float) -> RunView | None:
        view = super().fetch_run(session_id, run_id, after, timeout_s)
        if after is None:
            self._first = view = self._first or view
        return view


def test_a_run_that_goes_on_once_its_call_is_resolved_is_not_resumed_again() -> None:
    def die(value: object) -> object:
        raise KeyboardInterrupt

    send = tool(name="late send", effect="write", query=lambda key: TookEffect("sent"), deadline=5)(die)
    client, memory = memory_client()
    session = client.create(user_id="u")
    session.start()
    with client:
        crash_in_call(session, send)
        memory.advance(6)
        ports = memory_ports(memory, "acme", "service")._replace(runs=LateRuns(memory))
        with (
            SessionClient(tenant_id="acme", service_id="service", agent_id="second", ports=ports) as second,
            second.attach(session.session_id).resume_run("r") as run,
        ):
            run.result = "done"
    assert memory.refusals() == []
    assert memory.verdicts()[-1].event.envelope.event_type == "run_completed"
