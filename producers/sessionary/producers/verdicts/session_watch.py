"""Asks the control API about all sessions of a client, every few seconds, on a dedicated thread.

Finds the changes that no verb waits for: rejected events, time-outs, take-overs, and ends by
others. After a take-over, all verbs raise. After an end by others they do not: later events of an
agent are sent, rejected, and kept on the rejected topic.
"""

import random
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import NamedTuple, Protocol

from sessionary.producers.delivery.emitter import Emitter
from sessionary.producers.errors import (
    AuthenticationFailed,
    EventRejected,
    Invalid,
    ProducerError,
    SettingsError,
    Unavailable,
)
from sessionary.producers.ports import ChangedSession, KnownSession, PollTimer, Receipt, SessionChanges, SessionPolls
from sessionary.producers.verdicts.notifications import Finding, Notifications, SessionGoesOn
from sessionary.schemas.types import Rejection, RejectionReason

# The events of one session that may not be judged yet, so that rejections find their events.


CREATED = "session_created"


class SentSoFar(NamedTuple):
    """The events sent at one moment. Once `position` is judged, all of `event_ids` are."""

    event_ids: tuple[str, ...]
    position: tuple[int, int] | None  # of the last one; None: it is not known, or some are on their way


class SentEvents:
    """Keeps ids and types of events from when they are sent until they are judged. Thread-safe."""

    __slots__ = ("_emitter", "_types", "creation", "is_full", "rejected_after")

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._types: dict[str, str] = {}  # by event id, in the order in which they were sent
        self.creation: tuple[int, int] | None = None  # log_position of the first event, if it is known
        self.is_full = False  # True: all sessions' events together take too much memory
        self.rejected_after = -1  # offset up to which rejections are known

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
        """Keep an event that was sent, if there is room. Rejections of others are not reported."""
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
        """Return whether no event has a known position in the log, and none is on its way there."""
        try:
            return self._emitter.wait_position(0.0) is None
        except Unavailable:
            return False

    def list_sent(self) -> SentSoFar:
        """Return the events sent so far."""
        event_ids = tuple(self._types)
        return SentSoFar(event_ids, self._emitter.settled_position())  # in this order: it covers all of them

    def forget_events(self, event_ids: Iterable[str]) -> None:
        """Forget events that are judged."""
        for event_id in event_ids:
            self._types.pop(event_id, None)

    def take_rejected(self, event_id: str, reason: RejectionReason) -> EventRejected | None:
        """Return the finding on a rejected event; None if it is another client's, or reported."""
        event_type = self._types.pop(event_id, None)
        return None if event_type is None else EventRejected(self.session_id, event_id, event_type, reason)

    def match_rejections(self, rejections: Iterable[Rejection]) -> list[EventRejected]:
        """Return the findings on a session's last rejections: those of events sent here."""
        found: list[EventRejected] = []
        for offset, reason, event_id in rejections:
            self.rejected_after = max(self.rejected_after, offset)
            if (rejected := self.take_rejected(event_id, reason)) is not None:
                found.append(rejected)
        return found

    def reject_creation(self, event_ids: Iterable[str], reason: RejectionReason) -> list[EventRejected]:
        """Return the findings if a session was never created: all its events were rejected."""
        found: list[EventRejected] = []
        for event_id in event_ids:
            why: RejectionReason = reason if self._types.get(event_id) == CREATED else "unknown_session"
            if (rejected := self.take_rejected(event_id, why)) is not None:
                found.append(rejected)
        return found


# The times at which a client asks about its sessions: as set, and soon enough after a take-over.
#
# A process that lost its session must not work for long: it finds out before its next heartbeat
# is due. Pure: the caller has the clock and the chance.


_chance = random.SystemRandom()  # the program's own sequence of numbers stays as it is
_SPREAD = 0.4  # of an interval, so that many clients do not ask at once
_BEATS_PART = 0.8  # of a heartbeat's interval; the rest is for the question itself
_DOUBLED_MAX = 16
_BACKOFF_S_MAX = 60.0


class PollSchedule:
    """The pauses between polls; `interval_s` is the setting."""

    def __init__(self, interval_s: float) -> None:
        self.failures = 0  # in a row, up to the last poll
        self._interval_s = interval_s
        self._beats_s: float | None = None

    def note_beats(self, interval_s: float) -> bool:
        """Take the interval of a session that beats; return whether polls become more frequent."""
        if self._beats_s is not None and interval_s >= self._beats_s:
            return False
        before_s = self._longest_s()
        self._beats_s = interval_s
        return self._longest_s() < before_s

    def forget_beats(self) -> None:
        """Forget all intervals: those of the sessions that still beat are noted again."""
        self._beats_s = None

    def pause_s(self, chance: float) -> float:
        """Return the seconds from one poll to the next; `chance` is from 0 to 1.

        A control API that does not answer is asked ever less often.
        """
        interval_s = self._interval_s
        spread_s = interval_s * (1.0 - _SPREAD / 2 + _SPREAD * chance)
        longest_s = self._longest_s()
        if not self.failures:
            return min(spread_s, longest_s)
        doubled = 2.0 ** min(self.failures, _DOUBLED_MAX)
        return min(min(spread_s, longest_s) * doubled, max(_BACKOFF_S_MAX, interval_s))

    def _longest_s(self) -> float:
        if self._beats_s is None:
            return self._interval_s * (1.0 + _SPREAD / 2)
        return min(self._interval_s * (1.0 + _SPREAD / 2), self._beats_s * _BEATS_PART)


SESSIONS_MAX = 1_000  # of one request
_SENT_MAX = 100_000  # events that are remembered until they are judged, about 150 bytes each
_FIRST_S = 0.5  # at most, until the first poll, which also checks the token
_POLL_S = 10.0
_REPORT_AFTER = 3  # polls in a row without an answer


class WatchedHandle(Protocol):
    """The part of a session that the watch uses."""

    @property
    def lost(self) -> bool:
        """Whether the processor rejects what the session sends."""
        ...

    def beat_interval_s(self) -> float | None:
        """Return how often the session beats; None if it does not."""
        ...

    def describe_session(self) -> tuple[str, int, str | None, int]:
        """Return state, epoch, the producer id if this client holds the session, and its agents."""
        ...

    def leave_shared_id(self, producer_id: str | None, judged_seq: int) -> ProducerError | None:
        """Take a new producer id if another process uses ours; return the findings."""
        ...

    def adopt_change(self, change: ChangedSession) -> ProducerError | None:
        """Adopt a poll's finding; return the findings to report, if new."""
        ...

    def forget_judged(self, event_ids: Collection[str]) -> None:
        """Forget what was kept of events until they are judged; their rejections were reported."""
        ...

    def go_on(self, change: ChangedSession) -> SessionGoesOn | None:
        """Adopt an epoch that an operator or a clock has given; return the findings."""
        ...


FindHandle = Callable[[], WatchedHandle | None]
"""Finds a session that is held weakly; None once nothing refers to it."""


class _Watched(NamedTuple):
    sent: SentEvents
    handle: FindHandle


class _Asked(NamedTuple):
    """A session in a poll, with the events sent before it."""

    watched: _Watched
    so_far: SentSoFar
    known: KnownSession


class SessionWatch:
    """The watch of one client; its thread starts at once, unless there is no control API.

    Sessions are held weakly. One that ended is forgotten once its events are judged. The thread
    ends if there are none left, and starts again with the next one: a client that its program
    dropped leaves nothing.
    """

    def __init__(
        self,
        polls: SessionPolls | None,
        notifications: Notifications,
        interval_s: float,
        timer: PollTimer | None = None,
    ) -> None:
        """`interval_s`: between polls; 0 means that there are none. `timer` replaces the thread."""
        self.notifications = notifications
        self._polls = polls if interval_s > 0 else None
        self._interval_s = interval_s
        self._schedule = PollSchedule(interval_s)
        self._asked_s = time.monotonic()
        self._timer = timer
        self._wake = Condition()
        self._watched: list[_Watched] = []
        self._new: list[_Watched] = []
        self._is_token_checked = False
        self._reported = ""
        self._closed = False
        self._tenants: weakref.WeakSet[SessionWatch] = weakref.WeakSet()
        self._thread: Thread | None = None
        if self._polls is not None and timer is not None:
            timer.start_polls(self.poll_quietly)
        elif self._polls is not None:
            with self._wake:
                self._start_thread(_chance.uniform(0, min(_FIRST_S, interval_s)))

    def watch_session(self, handle: FindHandle, emitter: Emitter) -> SentEvents | None:
        """Watch a session. Return the store of its events; None if there are no polls."""
        if self._polls is None:
            return None
        sent = SentEvents(emitter)
        with self._wake:
            self._new.append(_Watched(sent, handle))
            if self._thread is None and self._timer is None:
                self._asked_s = time.monotonic()
                self._start_thread(None)
        return sent

    def note_beats(self, interval_s: float) -> None:
        """Ask at least as often as a session beats, from now on. Never blocks for long."""
        if self._polls is None:
            return
        with self._wake:
            if self._schedule.note_beats(interval_s):
                self._wake.notify()

    def close_with(self, tenant: "SessionWatch") -> None:
        """Close the watch of a tenant's client with this one, even if that client is dropped."""
        self._tenants.add(tenant)

    def close(self) -> None:
        """Stop asking and reporting. Does not wait; a second call does nothing."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        for tenant in list(self._tenants):
            tenant.close()

    def poll_now(self) -> None:
        """Ask about all sessions, and report the findings.

        Raises `AuthenticationFailed`, `Unavailable`, `Invalid`, `SettingsError`.
        """
        polls = self._polls
        if polls is None:
            return
        asked = self._list_sessions()
        chunks = [asked[first : first + SESSIONS_MAX] for first in range(0, len(asked), SESSIONS_MAX)]
        for chunk in chunks or [[]] * (not self._is_token_checked):
            changes = polls.poll_sessions([each.known for each in chunk], _POLL_S)
            self._is_token_checked = True
            self._take_answer(chunk, changes)

    def poll_quietly(self) -> None:
        """Do what `poll_now` does unless the watch is closed. Errors are reported."""
        if self._closed:
            return
        try:
            self.poll_now()
            self._schedule.failures, self._reported = 0, ""
        except AuthenticationFailed as error:
            self._is_token_checked = True
            self._report_failure(error, at_once=True)
        except (Invalid, SettingsError) as error:
            self._report_failure(error, at_once=True)
        except Unavailable as error:
            self._report_failure(error, at_once=False)
        except Exception as error:  # noqa: BLE001 - an error of one poll must not end the watch
            self._report_failure(error, at_once=True)

    def _start_thread(self, first_s: float | None) -> None:
        """Begin to poll, after `first_s` if that is given. Hold the lock."""
        if self._closed:
            return
        thread = Thread(target=self._run_polls, args=(first_s,), name="sessionary-watch", daemon=True)
        with suppress(RuntimeError):  # no thread can be had: the next session tries again
            thread.start()
            self._thread = thread

    def _run_polls(self, first_s: float | None) -> None:
        while self._wait_pause(first_s):
            first_s = None
            self._asked_s = time.monotonic()
            self.poll_quietly()

    def _wait_pause(self, first_s: float | None) -> bool:
        """Wait; return False once closed, or if there is nothing left to ask."""
        chance = _chance.random()
        with self._wake:
            if self._is_token_checked and not self._watched and not self._new:
                self._thread = None
                return False
            while not self._closed:
                pause_s = self._schedule.pause_s(chance)  # shorter once a session beats more often
                left_s = self._asked_s + (pause_s if first_s is None else min(first_s, pause_s)) - time.monotonic()
                if left_s <= 0:
                    return True
                self._wake.wait(left_s)
            return False

    def _report_failure(self, error: Exception, *, at_once: bool) -> None:
        """Notify `on_error` of a failure once, until a poll succeeds or fails for another
        reason.
        """
        self._schedule.failures += 1
        kind = f"{type(error).__name__}: {error}" if at_once else type(error).__name__
        if not self._closed and kind != self._reported and (at_once or self._schedule.failures >= _REPORT_AFTER):
            self._reported = kind
            self.notifications.report(error)

    def _list_sessions(self) -> list[_Asked]:
        """Return the sessions to ask about; forget those that need no more watching."""
        with self._wake:
            self._watched += self._new
            self._new = []
        asked: list[_Asked] = []
        kept: list[_Watched] = []
        for watched in self._watched:
            handle = watched.handle()
            reported = handle.describe_session() if handle is not None else ("Terminated", 1, None, 0)
            state, epoch, holder, agents = reported
            has_ended = state == "Terminated" and (not watched.sent or watched.sent.are_all_lost())
            if has_ended or (handle is not None and handle.lost):
                watched.sent.keep_none()
                continue
            kept.append(watched)
            so_far = watched.sent.list_sent()
            log_position = watched.sent.creation or so_far.position
            known = KnownSession(
                watched.sent.session_id,
                state,
                epoch,
                holder,
                watched.sent.rejected_after,
                log_position,
                *watched.sent.last_number(),
                agents,
            )
            asked.append(_Asked(watched, so_far, known))
        self._watched = kept
        self._note_all_beats()
        is_full = sum(len(each.so_far.event_ids) for each in asked) > _SENT_MAX
        for watched in kept:
            watched.sent.is_full = is_full
        return asked

    def _note_all_beats(self) -> None:
        with self._wake:  # first: a session that begins to beat from now on notes it itself
            self._schedule.forget_beats()
            watched = [*self._watched, *self._new]
        handles = [each.handle() for each in watched]
        beats_s = [handle.beat_interval_s() for handle in handles if handle is not None]
        with self._wake:
            for interval_s in beats_s:
                if interval_s is not None:
                    self._schedule.note_beats(interval_s)

    def _take_answer(self, asked: Sequence[_Asked], changes: SessionChanges) -> None:
        changed = {change.session_id: change for change in changes.sessions}
        for watched, so_far, known in asked:
            if self._closed:
                return
            log_position = so_far.position
            is_judged = log_position is not None and changes.positions.get(log_position[0], -1) > log_position[1]
            if (change := changed.get(known.session_id)) is not None:
                handle = watched.handle()
                if handle is not None and (shared := handle.leave_shared_id(known.producer_id, change.producer_seq)):
                    self.notifications.notify(shared)
                for finding in _find_notifications(watched, so_far, change, is_judged=is_judged):
                    self.notifications.notify(finding)
            if is_judged:
                watched.sent.forget_events(so_far.event_ids)
                if (handle := watched.handle()) is not None:
                    handle.forget_judged(so_far.event_ids)


def _find_notifications(
    watched: _Watched, so_far: SentSoFar, change: ChangedSession, *, is_judged: bool
) -> list[Finding]:
    """Return the findings on a session that differs."""
    handle, sent = watched.handle(), watched.sent
    findings: list[Finding] = [*sent.match_rejections(change.rejections)]
    verdict = change.verdict
    if change.state is None and not is_judged and (verdict is None or verdict.applied or not verdict.kept):
        return findings  # its creation is not judged yet
    if change.state is None and not (verdict is not None and verdict.applied):
        judged = so_far.event_ids if is_judged else so_far.event_ids[:1]
        findings += sent.reject_creation(judged, (verdict and verdict.reason) or "UNKNOWN")
    elif change.state == "Archived" and verdict is not None and verdict.reason is not None and so_far.event_ids:
        rejected = sent.take_rejected(so_far.event_ids[0 if sent.creation else -1], verdict.reason)
        findings += [] if rejected is None else [rejected]
    finding: Finding | None = None
    if handle is not None:
        finding = handle.adopt_change(change) or handle.go_on(change)
    return findings if finding is None else [*findings, finding]
