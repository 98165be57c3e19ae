"""The heartbeats of a session, and the timer thread that sends those of all sessions of a client.

The thread holds sessions weakly and asks each before every heartbeat. So the thread keeps no
session alive that has ended, that its agent dropped, or whose own thread or task has ended.
"""

import heapq
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from threading import Condition, Thread
from types import MethodType
from typing import Literal, NamedTuple, cast

from sessionary.producers.errors import Invalid, ProducerError
from sessionary.producers.process.guards import join_thread, start_thread
from sessionary.schemas.limits import HEARTBEATS_PER_BUDGET, inactivity_budget_ms, with_defaults
from sessionary.schemas.types import Limits

BeatsWith = Literal["process", "thread", "task"]
"""The owner whose life keeps heartbeats: the process, or the creating thread or task."""

IsAlive = Callable[[], bool]

# Heartbeats that are due within this time, and this part of their interval, go out together: each
# wake-up of the timer costs more than a heartbeat.
_TOGETHER_S, _TOGETHER_PART = 0.2, 0.02
_ENDED_MIN = 64  # entries of ended sessions that the queue may hold besides as many as live ones
# First heartbeats are spread over the interval by the golden ratio, so that the sessions of a
# process that starts thousands at once do not beat at once.
_SPREAD = 0.6180339887498949


def heartbeat_interval_s(limits: Limits, wanted_s: float) -> float:
    """Return `wanted_s`, but at most a sixth of the session's inactivity budget."""
    budget_ms = inactivity_budget_ms(with_defaults(limits))
    return min(wanted_s, budget_ms / 1000 / HEARTBEATS_PER_BUDGET)


def lifeline_of(beats_with: BeatsWith) -> IsAlive | None:
    """Return a test whether the calling thread or task lives; None for the process.

    The thread or task is held weakly. Raises `Invalid` for an unknown name, and for `task` outside
    an asyncio task.
    """
    if beats_with == "process":
        return None
    if beats_with == "thread":
        thread = weakref.ref(threading.current_thread())
        return lambda: (alive := thread()) is not None and alive.is_alive()
    import asyncio  # the client for threads does without it

    if beats_with != "task":
        raise Invalid("invalid_value", f"beats_with is {beats_with!r}; use 'process', 'thread' or 'task'")
    try:
        current = asyncio.current_task()
    except RuntimeError:
        current = None
    if current is None:
        raise Invalid("invalid_value", "beats_with='task' is called outside an asyncio task; use 'thread' or 'process'")
    task = weakref.ref(current)
    return lambda: (running := task()) is not None and not running.done()


# Sends one heartbeat; False if the session needs no more. Never blocks.
SendHeartbeat = Callable[[], bool]


class _Beating:
    """A session that beats, held weakly. `place`: the partition of its records, if it is known."""

    __slots__ = ("function", "interval_s", "is_live", "key", "owner", "place", "token")

    def __init__(self, send: SendHeartbeat, interval_s: float, key: bytes, token: int) -> None:
        method = cast(MethodType, send)
        self.owner: weakref.ref[object] = weakref.ref(method.__self__)
        self.function = cast(Callable[[object], bool], method.__func__)
        self.interval_s = interval_s
        self.key = key
        self.token = token
        self.place: int | None = None
        self.is_live = True


class _Round(NamedTuple):
    """Sessions of one interval that beat together. Compared by its time.

    Hundreds of sessions cost the queue no more than one does.
    """

    at_s: float  # monotonic
    number: int
    sessions: list[_Beating]

    @property
    def together_s(self) -> float:
        """The delay within which other heartbeats are sent together with these."""
        return min(_TOGETHER_S, self.sessions[0].interval_s * _TOGETHER_PART)


class Heartbeats:
    """The timer; its thread starts with the first session. Thread-safe.

    A forked child has none of its parent's heartbeats: its own begin with its first session.
    """

    def __init__(
        self, on_error: Callable[[Exception], None], place_of: Callable[[bytes], int | None] = lambda _key: None
    ) -> None:
        """`place_of` returns the partition of a record's key, or None if it is not known yet."""
        self._on_error = on_error
        self._place_of = place_of
        self._tokens = itertools.count(1)
        self._closed = False
        self._begin_empty()

    def _begin_empty(self) -> None:
        self._pid = os.getpid()
        self._wake = Condition()
        self._due: list[_Round] = []
        self._queued = 0  # sessions in `_due`, with those that have ended
        self._live: dict[int, _Beating] = {}
        self._thread: Thread | None = None

    def start_heartbeat(self, send: SendHeartbeat, interval_s: float, key: bytes = b"") -> int:
        """Call `send` every `interval_s` from now on, the first time sooner; return a token.

        `stop_heartbeat` takes the token. `send` is a bound method; its object is held weakly. `key`
        is the key of the records.
        """
        if self._pid != os.getpid():
            self._begin_empty()  # the lock of the parent's timer may be held for ever
        with self._wake:
            token = next(self._tokens)
            if self._closed:
                return token
            self._live[token] = beating = _Beating(send, interval_s, key, token)
            first = _Round(time.monotonic() + interval_s * (1.0 - token * _SPREAD % 1.0), token, [beating])
            if not self._due or first < self._due[0]:
                self._wake.notify()
            heapq.heappush(self._due, first)
            self._queued += 1
            failed = None if self._thread is not None else self._start_thread()
        if failed is not None:
            self._on_error(failed)
        return token

    def _start_thread(self) -> ProducerError | None:
        """Start the timer; return the error if no thread can be had. Hold the lock.

        The next session tries again.
        """
        thread = Thread(target=self._run_timer, name="sessionary-heartbeat", daemon=True)
        try:
            start_thread(thread)
        except ProducerError as error:
            return error
        self._thread = thread
        return None

    def stop_heartbeat(self, token: int) -> None:
        """Stop the heartbeats of `token`, if there are any."""
        with self._wake:
            stopped = self._live.pop(token, None)
            if stopped is not None:
                stopped.is_live = False
            if self._queued > 2 * len(self._live) + _ENDED_MIN:
                self._drop_ended()

    def _drop_ended(self) -> None:
        """Take the sessions that have ended out of the queue. Hold the lock."""
        for due in self._due:
            due.sessions[:] = [beating for beating in due.sessions if beating.is_live]
        self._due = [due for due in self._due if due.sessions]
        heapq.heapify(self._due)
        self._queued = sum(len(due.sessions) for due in self._due)

    def close(self, timeout_s: float) -> None:
        """Stop the thread, and wait for it at most that long; a second call does nothing."""
        with self._wake:
            self._closed = True
            for beating in self._live.values():
                beating.is_live = False
            self._live.clear()
            self._due.clear()
            self._wake.notify()
        join_thread(self._thread, timeout_s)

    def _wait_due(self) -> list[_Round]:
        """Wait until heartbeats are due, and take them out of the queue; empty once closed."""
        taken: list[_Round] = []
        with self._wake:
            while not self._closed:
                now_s = time.monotonic()
                while self._due and self._due[0].at_s <= now_s + (self._due[0].together_s if taken else 0.0):
                    taken.append(heapq.heappop(self._due))
                if taken:
                    self._queued -= sum(len(due.sessions) for due in taken)
                    return taken
                self._wake.wait(self._due[0].at_s - now_s if self._due else None)
        return taken

    def _run_timer(self) -> None:
        while self._send_due():
            pass

    def _send_due(self) -> bool:
        """Wait until heartbeats are due, and send them; return False once closed."""
        taken = self._wait_due()
        for beating in self._by_place([beating for due in taken for beating in due.sessions]):
            if not self._send_heartbeat(beating):
                beating.is_live = False
        self._queue_next(taken)
        return bool(taken)

    def _by_place(self, beating: list[_Beating]) -> list[_Beating]:
        """Return the sessions grouped by partition.

        Kafka's client sends a batch of a partition some milliseconds after its first record, and a
        batch costs as much as dozens of records.
        """
        try:
            for one in beating:
                if one.place is None:
                    one.place = self._place_of(one.key)
            return sorted(beating, key=lambda one: one.place or 0)
        except Exception as error:  # noqa: BLE001 - without this thread no session beats
            self._on_error(error)
            return beating

    def _send_heartbeat(self, beating: _Beating) -> bool:
        """Let a session send its heartbeat; False if it needs no more. The session may be gone."""
        owner = beating.owner()
        if owner is None or not beating.is_live:
            return False
        try:
            return beating.function(owner)
        except Exception as error:  # noqa: BLE001 - one session's error must not end the heartbeats of the others
            self._on_error(error)
            return True

    def _queue_next(self, sent: list[_Round]) -> None:
        """Queue the next heartbeats of those that continue; forget the sessions of the others."""
        rounds: list[_Round] = []
        with self._wake:
            now_s = time.monotonic()
            for due in sent:
                going = [beating for beating in due.sessions if beating.is_live]
                if len(going) < len(due.sessions):
                    for beating in due.sessions:
                        if not beating.is_live:
                            self._live.pop(beating.token, None)
                if not going:
                    continue
                # Keeps its place in the interval, unless the process was suspended.
                interval_s = going[0].interval_s
                next_s = max(due.at_s, now_s - interval_s) + interval_s
                last = rounds[-1] if rounds else None
                is_same = last is not None and last.sessions[0].interval_s == interval_s
                if last is not None and is_same and next_s <= last.at_s + last.together_s:
                    last.sessions.extend(going)
                else:
                    rounds.append(_Round(next_s, next(self._tokens), going))
            self._queued += sum(len(due.sessions) for due in rounds)
            for due in rounds:
                heapq.heappush(self._due, due)
