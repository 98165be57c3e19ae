"""The requests that are read and not answered yet, and what may be committed."""

import time
from collections.abc import Iterable, Mapping, Sequence

from sessionary.producers.errors import QueueFull
from sessionary.producers.ports import OnRequest, Receipt
from sessionary.schemas.records import CleanupRequest, MigrationRequest, TaskRequest

ServiceRequest = CleanupRequest | TaskRequest | MigrationRequest
"""What a service is asked for."""

_RETRY_S = 0.5
# An assigned partition of which neither a record nor the end was seen: behind any end of its log.
_NOT_READ = -1


class OpenRequest:
    """A request whose answer is not in the log yet."""

    def __init__(self, partition: int, offset: int, request: ServiceRequest | None) -> None:
        """`request` is None if the record is not for this service."""
        self.partition = partition
        self.offset = offset
        self._request = request
        self._next_try = 0.0
        self._answer_sent = False
        self.delivered = request is None

    def try_answer(self, on_request: OnRequest) -> None:
        """Answer, or answer again if the last answer was lost."""
        if self._request is None or self.delivered or self._answer_sent or time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + _RETRY_S
        self._answer_sent = True
        try:
            on_request(self._request, self._on_receipt)
        except QueueFull:
            self._answer_sent = False
        except Exception:  # of any kind: it is tried again, and the loop reports it
            self._answer_sent = False
            raise

    def _on_receipt(self, receipt: Receipt) -> None:
        self.delivered = receipt.error is None
        self._answer_sent = False


class RequestBacklog:
    """The open requests of the partitions that the group has assigned. For one thread.

    A partition stops at a record that cannot be read: no record from there on is taken, so nothing
    from there on is committed. A new assignment starts it again, because the group's offset may
    have passed the record by then.
    """

    def __init__(self) -> None:
        self.waiting: list[OpenRequest] = []
        self._next_offsets: dict[int, int] | None = None
        self._stopped: set[int] = set()

    @property
    def partitions(self) -> list[int]:
        """The assigned partitions."""
        return sorted(self._next_offsets or ())

    @property
    def next_offsets(self) -> Mapping[int, int] | None:
        """The next offset of each assigned partition that goes on; None without an assignment."""
        if self._next_offsets is None:
            return None
        return {number: offset for number, offset in self._next_offsets.items() if number not in self._stopped}

    @property
    def stopped_partitions(self) -> Sequence[int]:
        """The assigned partitions that have stopped. Any thread may ask."""
        return sorted(self._stopped)

    def begin_assignment(self, partitions: Iterable[int]) -> None:
        """Start with these partitions; what was open is read again."""
        self.waiting = []
        self._stopped.clear()
        self._next_offsets = dict.fromkeys(partitions, _NOT_READ)

    def end_assignment(self) -> None:
        """Forget all partitions: their next owner reads again what is not committed."""
        self.begin_assignment(())
        self._next_offsets = None

    def takes_from(self, partition: int) -> bool:
        """Return whether the partition is assigned and goes on."""
        return partition not in self._stopped and partition in (self._next_offsets or ())

    def add_request(self, partition: int, offset: int, request: ServiceRequest | None) -> None:
        """Take the record at `offset`; `request` is None if it is not for this service."""
        self.waiting.append(OpenRequest(partition, offset, request))
        self.note_position(partition, offset + 1)

    def note_position(self, partition: int, offset: int) -> None:
        """Note that all below `offset` was read."""
        if self._next_offsets is not None:
            self._next_offsets[partition] = offset

    def stop_partition(self, partition: int) -> None:
        """Take nothing more from a partition; what was taken before is still answered."""
        self._stopped.add(partition)

    def take_answered(self) -> dict[int, int]:
        """Drop what is answered; return by partition the offset to commit.

        A partition is committed up to its first request without an answer.
        """
        left: list[OpenRequest] = []
        held: dict[int, OpenRequest] = {}  # the last one that stays, by partition
        offsets: dict[int, int] = {}
        for one in self.waiting:
            before = held.get(one.partition)
            if before is not None and before.delivered and one.delivered:
                before.offset = one.offset  # neither is asked for again: one of them is enough
            elif before is not None or not one.delivered:
                held[one.partition] = one
                left.append(one)
            else:
                offsets[one.partition] = one.offset + 1
        self.waiting = left
        return offsets
