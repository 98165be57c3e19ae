"""Numbers the equal calls of one attempt, so that each call of a loop has a key of its own."""

from threading import Lock

SESSIONS_MAX = 10_000


class AttemptCalls:
    """The calls of one attempt at a step, of a run outside its steps, or of a session. Thread-safe.

    The numbers of equal calls begin at 1 in each attempt, and follow the order in which the calls
    begin. A call that is done keeps its number. Any other gives its number back when it ends, so
    that the next equal call has the same one.

    Attributes:
        ended: Keys of calls that ended here: their records are read before they are used again.
        has_past: Calls of earlier processes may have a record that is not known here.
    """

    __slots__ = ("_lock", "_taken", "ended", "has_past")

    def __init__(self, ended: set[str] | None = None, *, has_past: bool = False) -> None:
        """`ended`: shared with other attempts of the same run."""
        self.ended = set[str]() if ended is None else ended
        self.has_past = has_past
        self._lock = Lock()
        self._taken: dict[str, set[int]] = {}

    def take_number(self, call: str) -> int:
        """Return the least number that no equal call has."""
        with self._lock:
            taken = self._taken.setdefault(call, set())
            number = next(number for number in range(1, len(taken) + 2) if number not in taken)
            taken.add(number)
            return number

    def give_back(self, call: str, number: int) -> None:
        """Let the next equal call have the number: this one is not done."""
        with self._lock:
            self._taken[call].discard(number)


class SessionCalls:
    """The calls outside of runs in the sessions that one process works in. Thread-safe.

    Keeps those of `SESSIONS_MAX` sessions, as a process may leave sessions without ending them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: dict[str, AttemptCalls] = {}

    def of_session(self, session_id: str, *, has_past: bool) -> AttemptCalls:
        """Return the calls of a session; `has_past`: another process may have made some before."""
        with self._lock:
            calls = self._calls.pop(session_id, None) or AttemptCalls(has_past=has_past)
            if len(self._calls) >= SESSIONS_MAX:
                del self._calls[next(iter(self._calls))]  # that of the session used longest ago
            self._calls[session_id] = calls
            return calls

    def forget(self, session_id: str) -> None:
        """Forget a session that has ended."""
        with self._lock:
            self._calls.pop(session_id, None)
