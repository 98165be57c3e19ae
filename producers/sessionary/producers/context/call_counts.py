"""Numbers the equal calls of one attempt, so that each call of a loop has a key of its own."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

SESSIONS_MAX = 10_000


class AttemptCalls:
    """The calls of one attempt at a step, of a run outside its steps, of a turn, or of a session.

    Thread-safe.

    The numbers of equal calls begin at 1 in each attempt, and follow the order in which the calls
    begin. A call that is done keeps its number. Any other gives its number back when it ends, so
    that the next equal call has the same one.

    Attributes:
        ended: Keys of calls that ended here: their records are read before they are used again.
        has_past: Calls of earlier processes may have a record that is not known here.
        turn: Number of the turn whose calls these are; 0 outside of turns.
    """

    __slots__ = ("_drawn", "_lock", "_taken", "ended", "has_past", "turn")

    def __init__(self, ended: set[str] | None = None, *, has_past: bool = False, turn: int = 0) -> None:
        """`ended`: shared with other attempts of the same run."""
        self.ended = set[str]() if ended is None else ended
        self.has_past = has_past
        self.turn = turn
        self._lock = Lock()
        self._taken: dict[str, set[int]] = {}
        self._drawn = 0

    def take_number(self, call: str) -> int:
        """Return the least number that no equal call has."""
        with self._lock:
            taken = self._taken.setdefault(call, set())
            number = next(number for number in range(1, len(taken) + 2) if number not in taken)
            taken.add(number)
            return number

    def draw(self) -> int:
        """Return the number of a draw of chance, from 1."""
        with self._lock:
            self._drawn += 1
            return self._drawn

    @contextmanager
    def hold_number(self, call: str) -> Iterator[int]:
        """Return a block with the number of a call; left by an error, it gives the number back."""
        number = self.take_number(call)
        try:
            yield number
        except BaseException:
            self.give_back(call, number)
            raise

    def give_back(self, call: str, number: int) -> None:
        """Let the next equal call have the number: this one is not done."""
        with self._lock:
            self._taken[call].discard(number)


def number_of(text: str) -> float:
    """Return a number from 0 to 1, 1 excluded, that is evenly spread over texts."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) / (1 << 56)


class SessionCalls:
    """The calls outside of runs in the sessions that one process works in. Thread-safe.

    Keeps those of `SESSIONS_MAX` sessions, as a process may leave sessions without ending them. A
    session has one turn at a time, whose calls count by themselves.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: dict[str, AttemptCalls] = {}
        self._turns: dict[str, AttemptCalls | None] = {}  # the open ones; None: it is about to begin

    def open_turn(self, session_id: str) -> bool:
        """Note that a turn of a session is about to begin; False if one is open."""
        with self._lock:
            is_free = session_id not in self._turns
            self._turns.setdefault(session_id, None)
            return is_free

    def begin_turn(self, session_id: str, turn: int, *, has_past: bool) -> None:
        """Count the calls of the turn that was opened, by themselves; `turn` is its number."""
        with self._lock:
            self._turns[session_id] = AttemptCalls(has_past=has_past, turn=turn)

    def end_turn(self, session_id: str) -> None:
        """Forget a session's turn."""
        with self._lock:
            self._turns.pop(session_id, None)

    def turn_of(self, session_id: str) -> int:
        """Return the number of a session's turn; 0 outside of turns."""
        with self._lock:
            of_turn = self._turns.get(session_id)
            return 0 if of_turn is None else of_turn.turn

    def of_session(self, session_id: str, *, has_past: bool) -> AttemptCalls:
        """Return the calls of a session's turn, or else of the session.

        `has_past`: another process may have made some before.
        """
        with self._lock:
            if (of_turn := self._turns.get(session_id)) is not None:
                return of_turn
            calls = self._calls.pop(session_id, None) or AttemptCalls(has_past=has_past)
            if len(self._calls) >= SESSIONS_MAX:
                del self._calls[next(iter(self._calls))]  # that of the session used longest ago
            self._calls[session_id] = calls
            return calls

    def forget(self, session_id: str) -> None:
        """Forget a session that has ended."""
        with self._lock:
            self._calls.pop(session_id, None)
