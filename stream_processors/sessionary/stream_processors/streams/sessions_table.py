"""The table `sessions`, as Faust's users know tables.

It has no changelog topic in Faust's sense, and Faust's manager of tables does not know it: Faust's
recovery would read the whole changelog a second time, while a rebalance waits. The owners of
partitions recover the rows, and this table reads theirs.
"""

from typing import Any, NoReturn

import faust

from sessionary.schemas.records import SessionState
from sessionary.stream_processors.errors import ReadOnly
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.streams.local_sessions import LocalSessions


class SessionsTable(faust.Table[str, SessionState]):
    """The sessions of this worker's open partitions, to be read by agents of the same worker.

    `table[key]`, `get`, `in`, `len`, `keys`, `items` and `values` are those of `LocalSessions`:
    a key is `tenant_id:session_id` as text or bytes, or a `SessionKey`; a session whose partition
    is not open here raises `NotLocal` instead of seeming unknown. Values are what the last
    committed transaction left. Every write raises `ReadOnly`. Use it on the event loop.
    """

    def __init__(self, app: faust.App, assignment: Assignment, partitions: int) -> None:
        """`partitions`: of the events topic. The table is not one of `app.tables`."""
        super().__init__(
            app, name="sessions", partitions=partitions, help="the committed sessions of this worker's partitions"
        )
        self._sessions = LocalSessions(assignment, partitions)

    @property
    def data(self) -> Any:  # type: ignore[override]  # Faust has a store that it may write to
        """The rows, read-only."""
        return self._sessions

    def __getitem__(self, key: object) -> SessionState:
        """Return a session.

        Raises `KeyError` if there is none, and `NotLocal` if its partition is not open here.
        """
        return self._sessions[key]

    def get(self, key: object, default: Any = None) -> Any:
        """Return a session, or `default` if there is none.

        Raises `NotLocal` if its partition is not open here.
        """
        return self._sessions.get(key, default)  # type: ignore[call-overload]  # any form of a key

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ReadOnly(
            "the table `sessions` is read-only: a session changes by events only. Send them with a client "
            "(sessionary.producers), or keep what you compute in a topic of your own"
        )

    __setitem__ = __delitem__ = setdefault = pop = popitem = _refuse
    update = clear = raw_update = reset_state = send_changelog = using_window = _refuse
