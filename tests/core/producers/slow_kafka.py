"""A broker in memory whose acknowledgements come when a test says so."""

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt, SessionView
from sessionary.producers.testing import InMemoryTransport, memory_ports

SETTINGS = ProducerSettings.from_env({}, verdict_timeout_s=20.0)


class SlowKafka(InMemoryTransport):
    """Acknowledges events when it is asked to, and writes down the questions about sessions."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.held: list[tuple[OnReceipt, Receipt]] | None = None
        self.asked: list[tuple[int, int] | None] = []

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        def hold_receipt(receipt: Receipt) -> None:
            if on_receipt is not None:
                on_receipt(receipt) if self.held is None else self.held.append((on_receipt, receipt))

        super().send(record, hold_receipt)

    def acknowledge(self, events: int) -> None:
        """Hand out so many of the receipts that are held."""
        assert self.held is not None
        for _ in range(events):
            on_receipt, receipt = self.held.pop(0)
            on_receipt(receipt)

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        self.asked.append(after)
        return super().fetch_session(session_id, after, timeout_s)


def client_of(kafka: SlowKafka, agent_id: str, settings: ProducerSettings = SETTINGS) -> SessionClient:
    """Return a client of this memory."""
    return SessionClient(
        tenant_id="acme", service_id="shop", agent_id=agent_id, settings=settings, ports=memory_ports(kafka)
    )
