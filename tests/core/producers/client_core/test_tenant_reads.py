"""What the clients of further tenants read."""

from collections.abc import Sequence

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.run_ports import LogPosition, MessageView
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.producers.testing.memory_runs import MemoryRuns


class OneTurn(MemoryRuns):
    """Knows one turn of each session."""

    def fetch_messages(
        self, session_id: str, last: int, after: LogPosition | None, timeout_s: float
    ) -> Sequence[MessageView]:
        return [MessageView(1, "user", "of globex")]


def test_a_tenants_sessions_read_what_its_own_ports_tell() -> None:
    memory = InMemoryTransport()
    ports = memory_ports(memory)
    of_globex = ports._replace(runs=OneTurn(memory))
    settings = ProducerSettings.from_env({})
    client = SessionClient(
        tenant_id="acme",
        service_id="s",
        agent_id="a",
        settings=settings,
        ports=ports._replace(tenant_ports=lambda tenant, its: of_globex),
    )
    with client, client.for_tenant("globex") as globex:
        assert client.session(user_id="u").conversation.read() == []
        assert [turn.content for turn in globex.session(user_id="u").conversation.read()] == ["of globex"]
