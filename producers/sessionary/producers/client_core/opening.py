"""Opens a session by an id of the caller's own: finds the newest one of the id, or creates it.

A session that ended because it waited too long for its user has a successor. Its id follows from
the ended one's, so that all processes open the same one. The judge lets one creator win; the others
learn it before they send anything else.
"""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from sessionary.producers.client_core.core import ClientCore
from sessionary.producers.durable.recorder import REAL_WAITS
from sessionary.producers.errors import Rejected, SessionEnded, SessionExists, SessionLost, Unavailable
from sessionary.producers.ports import ChangedSession, KnownSession
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.heartbeat import IsAlive
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.schemas.ids import successor_id

USER_IDLE: Final = "user_idle"
"""The reason code of a session that waited too long for its user."""

# After these ends the id is free for a successor: the session waited in vain, or did no work.
_CONTINUED: Final = frozenset(
    {USER_IDLE, "init_timeout", "invalid_config", "connection_failed", "quota_exceeded", "quota_timeout"}
)
_ASKED: Final = 64  # successors in one question
# Behind them, if the first session is forgotten: sessions of the last 14 days are known, in a row.
_AHEAD: Final = 512
_AHEAD_STRIDE: Final = 8
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_MOMENT_S: Final = 0.001
_OVER: Final = ("Terminated", "Archived")
_CREATED: Final = "session_created"


class Opening:
    """The clock of one call of `open`: it waits for at most the setting `verdict_timeout_s`."""

    def __init__(self, client: ClientCore) -> None:
        """Begin now. Raises `ClientClosed`, and `SettingsError` without a control API."""
        client.reopen_in_child()
        if not client.gate.open:
            raise client.closed_error()
        client.ports.control.check_configured()
        self.client = client
        self._waits = client.services.waits or REAL_WAITS
        self._deadline_s = self._waits.now_s() + client.settings.verdict_timeout_s

    @property
    def left_s(self) -> float:
        """The seconds left, at least the shortest pause."""
        return max(self._deadline_s - self._waits.now_s(), _PAUSE_S)

    def pause(self, seconds: float, late: Unavailable) -> None:
        """Wait. Raises `late` if the time would be over."""
        if self._waits.now_s() + seconds >= self._deadline_s:
            raise late
        if self._waits.pause is None:
            time.sleep(seconds)
        else:  # in log time: without a moment for its thread, who starts the session would be too late
            time.sleep(_MOMENT_S)
            self._waits.pause(seconds)


class Place(NamedTuple):
    """Where an id leads: to a session that is at work, or to one that is to be created."""

    session_id: str
    state: str | None  # None: there is no such session
    parent_id: str | None  # the ended session that a new one continues


def find_place(opening: Opening, session_id: str) -> Place:
    """Return the newest session of an id, or the one to create.

    Waits while that one is being started by its creator. Raises `SessionEnded` if its work is over,
    `Unavailable`, and as the control API does.
    """
    while (place := _find_newest(opening, session_id)).state == "Idle":
        opening.pause(
            _PAUSE_S,
            Unavailable(f"session {place.session_id} is being started by another process; open it again", _PAUSE_S_MAX),
        )
    return place


def _find_newest(opening: Opening, session_id: str) -> Place:
    tenant_id = opening.client.tenant_id
    newest = _ask(opening, [session_id])[0]
    if newest.state is not None and newest.state not in _OVER:
        return Place(session_id, newest.state, None)
    if not _is_final(newest):
        last, ahead = session_id, _AHEAD if newest.state is None else 0
        while True:
            following: list[str] = []
            while len(following) < _ASKED + ahead:
                last = successor_id(tenant_id, last)
                following.append(last)
            asked = following[:_ASKED] + following[_ASKED + _AHEAD_STRIDE - 1 :: _AHEAD_STRIDE]
            found = [each for each in _ask(opening, asked) if each.state is not None]
            newest = found[-1] if found else newest
            if not found or newest.session_id in asked[: _ASKED - 1]:
                break
            last, ahead = newest.session_id, 0
    if newest.state is None:
        return Place(session_id, None, None)
    if newest.state not in _OVER:
        return Place(newest.session_id, newest.state, None)
    if _is_final(newest):
        raise SessionEnded(
            f"session {newest.session_id} has ended ({newest.reason_code}): its work is over; use another id, or "
            f"`client.session(parent={newest.session_id!r})` for further work"
        )
    return Place(successor_id(tenant_id, newest.session_id), None, newest.session_id)


def _is_final(session: ChangedSession) -> bool:
    """Return whether a session's end is one that no successor follows, as long as it is kept."""
    return session.state == "Terminated" and session.reason_code not in _CONTINUED


def _ask(opening: Opening, session_ids: Sequence[str]) -> Sequence[ChangedSession]:
    """Return what the processor knows of sessions, in their order. Raises `Unavailable`.

    A client without polls gets the first one only; the others are unknown.
    """
    polls, pause_s = opening.client.ports.polls, _PAUSE_S
    if polls is None:
        return [_fetch_state(opening, session_ids[0]), *map(_unknown, session_ids[1:])]
    while True:
        try:
            known = [KnownSession(each, "", 0, None, -1, None) for each in session_ids]
            changes = {each.session_id: each for each in polls.poll_sessions(known, opening.left_s).sessions}
            if changes.keys() >= set(session_ids):
                return [changes[each] for each in session_ids]
            late = Unavailable("the session's partition does not answer yet", _PAUSE_S_MAX)
        except Unavailable as error:
            late = error
        opening.pause(pause_s, late)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)


def _fetch_state(opening: Opening, session_id: str) -> ChangedSession:
    try:
        view = opening.client.ports.control.fetch_session(session_id, None, opening.left_s)
    except SessionLost:
        return _unknown(session_id)
    return _unknown(session_id)._replace(state=view.state, reason_code=view.reason_code)


def _unknown(session_id: str) -> ChangedSession:
    return ChangedSession(session_id, None, None, None, None, (), None)


def attach_opened(client: ClientCore, place: Place, user_id: str, is_alive: IsAlive | None) -> SessionCore:
    """Attach to a session at work. Raises `SessionExists` if it is another service's or user's."""
    core = client.open_attached(place.session_id, user_id, is_alive, may_beat=True)
    try:
        view = core.sync(core.view.departures, attaches=True)
        if view.owner_service != core.emitter.service_id:
            raise SessionExists(
                place.session_id,
                f"is of the service {view.owner_service}: `client.attach` shares it; use another id for a session of "
                f"{core.emitter.service_id}",
            )
        if view.user_id not in (None, user_id):
            raise SessionExists(place.session_id, "serves another user: use another id for this one")
    except BaseException:
        core.abandon()
        raise
    return core


def require_creation(client: ClientCore, core: SessionCore, created: PendingVerdict) -> None:
    """Return once the session is surely this object's own. Blocks.

    Raises `SessionExists` if another one created it, `Rejected`, `Unavailable`, `DeliveryFailed`,
    and as the control API does. The object is then lost.
    """
    try:
        _await_creation(client, core, created)
    except BaseException:
        with core.lock:
            core.lose()
        core.abandon()
        raise


def _await_creation(client: ClientCore, core: SessionCore, created: PendingVerdict) -> None:
    services, emitter = core.services, core.emitter
    deadline_s = time.monotonic() + services.verdict_timeout_s
    position = created.wait_position(services.verdict_timeout_s)
    while True:
        left_s = max(deadline_s - time.monotonic(), _PAUSE_S)
        try:
            view = services.control.fetch_session(core.session_id, position, left_s)
            break
        except SessionLost as lost:
            if position is not None:
                raise _creation_error(client, core, created, position, lost) from None
            if time.monotonic() + _PAUSE_S >= deadline_s:
                raise
            time.sleep(_PAUSE_S)  # without a position, it may not be judged yet
    verdict = view.verdict
    is_known = verdict is not None and verdict.kept
    is_own = verdict.applied if verdict is not None and is_known else view.holder == emitter.producer_id
    if not is_own or (not is_known and emitter.last_seq != 1):
        raise SessionExists(core.session_id)


def _creation_error(
    client: ClientCore, core: SessionCore, created: PendingVerdict, position: tuple[int, int], lost: SessionLost
) -> Exception:
    """Return why there is no session although its creation is judged."""
    polls = client.ports.polls
    if polls is None:
        return lost
    known = KnownSession(core.session_id, "", 0, None, -1, position)
    found = polls.poll_sessions([known], core.services.verdict_timeout_s).sessions
    reason = (found[0].verdict and found[0].verdict.reason) if found else None
    if found and found[0].state == "Archived":
        return SessionExists(core.session_id, "is archived: `client.open` continues it in a new one")
    return Rejected(_CREATED, reason or "UNKNOWN")


def pending_creation() -> PendingVerdict:
    """Return what takes the receipt of a session's first event."""
    return PendingVerdict("create", _CREATED, "Idle")
