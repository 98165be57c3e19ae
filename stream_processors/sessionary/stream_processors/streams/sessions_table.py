"""The table `sessions`, as Faust's users know tables.

It has no changelog topic in Faust's sense, and Faust's manager of tables does not know it: Faust's
recovery would read the whole changelog a second time, while a rebalance waits. The owners of
partitions recover the rows, and this table reads theirs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, cast

import faust

from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import SessionKey, parse_key, partition_of
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.errors import NotLocal, ReadOnly
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.store.cached_rows import CachedRows

# The committed sessions of this worker's open partitions, as a read-only mapping.


class LocalSessions(Mapping[str, SessionState]):
    """The sessions of the open partitions, each as of its last committed transaction.

    A key is `tenant_id:session_id`: text, the bytes of a record's key, or a `SessionKey`. Archived
    sessions are absent. Use it on the event loop.
    """

    def __init__(self, assignment: Assignment, partitions: int) -> None:
        """`partitions`: of the events topic."""
        self._assignment = assignment
        self._partitions = partitions

    def __getitem__(self, key: object) -> SessionState:
        """Return a session: in some 10 µs, or 50 µs if it was not used lately. May read a file.

        Raises `KeyError` if there is none, `NotLocal` if the key's partition is not open here,
        `Halted` if the row cannot be read, and `TypeError` if `key` is no key.
        """
        encoded = _encoded_key(key)
        partition = partition_of(encoded, self._partitions)
        owner = self._assignment.owners.get(partition)
        if owner is None or not owner.is_readable:
            raise NotLocal(key, partition, self._assignment.next_offsets)
        row = owner.state.rows.get(encoded)
        if not isinstance(row, SessionState):
            raise KeyError(key)
        return row

    def __iter__(self) -> Iterator[str]:
        """Yield the keys of the partitions that are open now.

        Walks over every row, some 6 µs each, and blocks the event loop for one partition at a time.
        """
        for owner in [*self._assignment.owners.values()]:
            if owner.is_readable:
                yield from _session_keys(owner)

    def __len__(self) -> int:
        """Count the sessions. Costs as much as walking over the keys."""
        return sum(1 for _ in self)


def _encoded_key(key: object) -> bytes:
    match key:
        case bytes():
            return key
        case str():
            return key.encode()
        case (str(tenant_id), str(session_id)):
            return SessionKey(tenant_id, session_id).encoded()
    raise TypeError(f"{key!r} is no key of a session: use 'tenant_id:session_id' as text or bytes, or a SessionKey")


def _session_keys(owner: PartitionOwner) -> list[str]:
    """Return the keys of a partition's sessions, without decoding a row."""
    # Tombstones are not live; the rows of other families have other keys.
    rows = cast(CachedRows, owner.state.rows)
    live = (key for found in rows.due_rows() if found.fate.live for key in found.keys)
    return [key.decode() for key in live if _is_session_key(key)]


def _is_session_key(key: bytes) -> bool:
    try:
        parse_key(key)
    except Invalid:
        return False
    return True


class SessionsTable(faust.Table[str, SessionState]):
    """The sessions of this worker's open partitions, to be read by agents of the same worker.

    `table[key]`, `get`, `in`, `len`, `keys`, `items` and `values` are those of `LocalSessions`:
    a key is `tenant_id:session_id` as text or bytes, or a `SessionKey`; a session whose partition
    is not open here raises `NotLocal` instead of seeming unknown. Values are as of the last
    committed transaction. Every write raises `ReadOnly`. Use the table on the event loop.
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
