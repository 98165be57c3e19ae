"""The verb whose verdict a session waits for, also after the session is left."""

import time
from collections.abc import Callable
from threading import Condition, Event, Thread

from sessionary.producers.durable.recorder import wait_recorded
from sessionary.producers.errors import ProducerError, Unavailable
from sessionary.producers.ports import OnError, Receipt
from sessionary.producers.process.guards import start_thread

_ROUND_S = 0.1
TAKES_SESSION = frozenset({"attach", "accept"})
"""The verbs that make this process the session's holder; they may leave its state as it is."""
# Asks for one verdict, for at most so many seconds; True once there is nothing more to do.
FollowVerdict = Callable[[float], bool]


class PendingVerdict:
    """An event that was sent in state `local_state`, and whose verdict the agent waits for."""

    def __init__(
        self, verb: str, event_type: str, local_state: str, producer_id: str | None = None, epoch: int = 1
    ) -> None:
        """`producer_id`, `epoch`: the event's, if the session may get others meanwhile."""
        self.verb = verb
        self.event_type = event_type
        self.local_state = local_state
        self.producer_id = producer_id
        self.epoch = epoch
        self.adopted = False  # a waiting call has brought the session up to date with the verdict
        self.event_id = ""
        self._receipt: Receipt | None = None
        self._delivered = Event()

    @property
    def continues_snapshot(self) -> bool:
        """True if the session continues with the content of its last snapshot: after a pause."""
        return self.verb == "resume" and self.local_state == "Paused"

    @property
    def leads_to_active(self) -> bool:
        """True if the session is Active once the verb is granted. A take-over changes no state."""
        return self.verb not in TAKES_SESSION or self.local_state == "Active"

    @property
    def is_in_log(self) -> bool:
        """True once the event is in the log, so that later events come after it."""
        return self._receipt is not None and self._receipt.error is None

    def on_receipt(self, receipt: Receipt) -> None:
        """Store the event's receipt. Called on any thread."""
        self._receipt = receipt
        self._delivered.set()

    @property
    def settled(self) -> bool:
        """True once the event is delivered or lost."""
        return self._delivered.is_set()

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


def wait_acknowledged(sent: PendingVerdict, what: str, timeout_s: float) -> None:
    """Wait until the broker has an event. Raises `Unavailable`, which names `what`."""
    try:
        wait_recorded(sent, what, timeout_s)
    except Unavailable as error:
        if sent.settled:
            raise
        raise Unavailable(
            f"{what} is not acknowledged yet; it is still sent, so do not repeat it: `sync` returns once it is judged",
            error.retry_after_s,
        ) from None


class VerdictFollower:
    """Waits for the verdicts of sessions that were left before they were known. Thread-safe.

    One thread asks for them in turn. It ends with the last one.
    """

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._changed = Condition()
        self._open: list[FollowVerdict] = []
        self._thread: Thread | None = None
        self._closed = False

    def follow_verdict(self, follow: FollowVerdict) -> None:
        """Call `follow` again and again, on another thread, until it returns True. Never blocks."""
        failed: ProducerError | None = None
        with self._changed:
            if self._closed:
                return
            self._open.append(follow)
            if self._thread is None or not self._thread.is_alive():  # it does not outlive a fork
                self._thread = Thread(target=self._run_rounds, name="sessionary-verdicts", daemon=True)
                try:
                    start_thread(self._thread)
                except ProducerError as error:  # the session was left: its verdict is not waited for
                    self._open.remove(follow)
                    failed = error
        if failed is not None:
            self._on_error(failed)

    def close(self, timeout_s: float) -> None:
        """Wait for the open verdicts, for at most `timeout_s`; then give the rest up."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, timeout_s)
            self._closed = True
            self._open.clear()
            self._changed.notify_all()

    def _run_rounds(self) -> None:
        while True:
            with self._changed:
                if not self._open:
                    self._thread = None
                    return
                current = list(self._open)
            done = [follow for follow in current if self._ends_now(follow)]
            with self._changed:
                self._open = [follow for follow in self._open if follow not in done]
                self._changed.notify_all()
            if len(done) < len(current):
                time.sleep(_ROUND_S)

    def _ends_now(self, follow: FollowVerdict) -> bool:
        try:
            return follow(_ROUND_S)
        except Exception as error:  # noqa: BLE001 - one session's error must not end the thread, which serves all
            self._on_error(error)
            return True
