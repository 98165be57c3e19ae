"""Clients in memory of tenant `acme`, and what became of their events, as short texts."""

from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.ports import OnReceipt, OutRecord
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.schemas.rules import NEWEST_RULES


class JudgedMemory(InMemoryTransport):
    """A memory of one partition; `outcomes` has `applied`, `refused late` and the like."""

    def __init__(self, rules: int = NEWEST_RULES.version) -> None:
        super().__init__(partitions=1, rules=rules)
        self.outcomes: list[str] = []

    def client(self, service_id: str = "billing", agent_id: str = "agent-1") -> tuple[SessionClient, list[Exception]]:
        """Return a client, and the errors that it reports."""
        errors: list[Exception] = []
        client = SessionClient(
            tenant_id="acme",
            service_id=service_id,
            agent_id=agent_id,
            settings=ProducerSettings.from_env({}),
            on_error=errors.append,
            ports=memory_ports(self, "acme", service_id),
        )
        return client, errors

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        super().send(record)
        judged = self.verdicts()[-1]
        self.outcomes.append(judged.outcome if judged.reason is None else f"{judged.outcome} {judged.reason}")
        if on_receipt is not None:
            on_receipt(judged.receipt)


__all__ = ["JudgedMemory"]
