"""Waiting for a verdict, and errors as events carry them."""

from threading import Event

from sessionary.producers.errors import Unavailable
from sessionary.producers.ports import Receipt
from sessionary.schemas.types import ErrorInfo

MESSAGE_LENGTH_MAX = 4_000


class Asked:
    """A verb whose verdict is awaited."""

    def __init__(self, verb: str, event_type: str) -> None:
        self.verb = verb
        self.event_type = event_type
        self.event_id = ""
        self._receipt: Receipt | None = None
        self._known = Event()

    def on_receipt(self, receipt: Receipt) -> None:
        """Hear of the event's delivery, on any thread."""
        self._receipt = receipt
        self._known.set()

    def place(self, timeout_s: float) -> tuple[int, int] | None:
        """Wait for the event's (partition, offset); None where it is delivered, and nobody knows its place.

        A broker that took it in an attempt whose answer was lost tells no offset when it is asked again. Raises
        `Unavailable`, `DeliveryFailed`.
        """
        if not self._known.wait(timeout_s) or self._receipt is None:
            raise Unavailable(f"{self.event_type} is not delivered yet", 1.0)
        receipt = self._receipt
        if receipt.error is None and receipt.partition is not None and receipt.offset is None:
            return None
        return receipt.place(self.event_id)


def error_info(error: BaseException | ErrorInfo, *, retryable: bool | None = None) -> ErrorInfo:
    """Return `error` as events carry it; time-outs and lost connections are retryable unless said otherwise."""
    if isinstance(error, ErrorInfo):
        return error
    if retryable is None:
        retryable = isinstance(error, TimeoutError | ConnectionError | Unavailable)
    message = str(error)[:MESSAGE_LENGTH_MAX]
    return ErrorInfo("retryable" if retryable else "fatal", type(error).__name__, message)


__all__ = ["MESSAGE_LENGTH_MAX", "Asked", "error_info"]
