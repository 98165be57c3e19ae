"""The events of one session that may not be judged yet, so that refusals find their events."""

from collections.abc import Iterable
from typing import NamedTuple

from sessionary.producers.delivery.emitter import Emitter
from sessionary.producers.errors import EventRefused, Unavailable
from sessionary.producers.ports import Receipt
from sessionary.schemas.types import Refusal, RefusalReason

CREATED = "session_created"


class SentSoFar(NamedTuple):
    """What was sent at one moment. Once `position` is judged, all of `event_ids` are."""

    event_ids: tuple[str, ...]
    position: tuple[int, int] | None  # of the last one; None: it is not known, or some are on their way


class SentEvents:
    """Keeps ids and types of events from when they are sent until they are judged. Thread-safe."""

    __slots__ = ("_emitter", "_types", "creation", "is_full", "refused_after")

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._types: dict[str, str] = {}  # by event id, in the order in which they were sent
        self.creation: tuple[int, int] | None = None  # place of the first event, if it is known
        self.is_full = False  # True: all sessions' events together take too much memory
        self.refused_after = -1  # offset up to which refusals are known

    def __len__(self) -> int:
        return len(self._types)

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        return self._emitter.key.session_id

    def last_number(self) -> tuple[str, int]:
        """Return the producer id of the session's events, and the last number given out under it.

        If the id changes meanwhile, the number may be one of the new id's.
        """
        return self._emitter.producer_id, self._emitter.last_seq

    def add_event(self, event_id: str, event_type: str) -> None:
        """Keep an event that was sent, if there is room. Of others no refusal is told."""
        if not self.is_full:
            self._types[event_id] = event_type

    def on_creation_receipt(self, receipt: Receipt) -> None:
        """Take the receipt of the session's first event. Called on any thread."""
        if receipt.error is None and receipt.partition is not None and receipt.offset is not None:
            self.creation = receipt.partition, receipt.offset

    def keep_none(self) -> None:
        """Forget all events, and keep no further ones: nothing more is asked about the session."""
        self.is_full = True
        self._types.clear()

    def are_all_lost(self) -> bool:
        """Return whether no event has a known place in the log, and none is on its way there."""
        try:
            return self._emitter.wait_position(0.0) is None
        except Unavailable:
            return False

    def list_sent(self) -> SentSoFar:
        """Return what was sent so far."""
        event_ids = tuple(self._types)
        return SentSoFar(event_ids, self._emitter.settled_position())  # in this order: it covers all of them

    def forget_events(self, event_ids: Iterable[str]) -> None:
        """Forget events that are judged."""
        for event_id in event_ids:
            self._types.pop(event_id, None)

    def take_refused(self, event_id: str, reason: RefusalReason) -> EventRefused | None:
        """Return what is to be told of a refused event; None if it is another client's, or told."""
        event_type = self._types.pop(event_id, None)
        return None if event_type is None else EventRefused(self.session_id, event_id, event_type, reason)

    def match_refusals(self, refusals: Iterable[Refusal]) -> list[EventRefused]:
        """Return what is to be told of a session's last refusals: those of events sent here."""
        found: list[EventRefused] = []
        for offset, reason, event_id in refusals:
            self.refused_after = max(self.refused_after, offset)
            if (refused := self.take_refused(event_id, reason)) is not None:
                found.append(refused)
        return found

    def refuse_creation(self, event_ids: Iterable[str], reason: RefusalReason) -> list[EventRefused]:
        """Return what is to be told if a session was never created: all its events were refused."""
        found: list[EventRefused] = []
        for event_id in event_ids:
            why: RefusalReason = reason if self._types.get(event_id) == CREATED else "unknown_session"
            if (refused := self.take_refused(event_id, why)) is not None:
                found.append(refused)
        return found
