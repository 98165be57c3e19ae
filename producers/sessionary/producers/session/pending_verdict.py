"""The verb whose verdict a session waits for."""

from threading import Event

from sessionary.producers.errors import Unavailable
from sessionary.producers.ports import Receipt


class PendingVerdict:
    """An event that was sent, and whose verdict the agent waits for."""

    def __init__(self, verb: str, event_type: str) -> None:
        self.verb = verb
        self.event_type = event_type
        self.event_id = ""
        self._receipt: Receipt | None = None
        self._delivered = Event()

    def on_receipt(self, receipt: Receipt) -> None:
        """Store the event's receipt. Called on any thread."""
        self._receipt = receipt
        self._delivered.set()

    def wait_position(self, timeout_s: float) -> tuple[int, int] | None:
        """Wait for the event's (partition, offset); None if it was delivered without an offset.

        A broker that wrote the event in an attempt whose answer was lost gives no offset when
        the event is sent again. Raises `Unavailable`, `DeliveryFailed`.
        """
        if not self._delivered.wait(timeout_s) or self._receipt is None:
            raise Unavailable(f"{self.event_type} is not delivered yet", 1.0)
        receipt = self._receipt
        if receipt.error is None and receipt.partition is not None and receipt.offset is None:
            return None
        return receipt.log_position(self.event_id)


__all__ = ["PendingVerdict"]
