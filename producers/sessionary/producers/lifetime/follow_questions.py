"""The client's verb that follows a session of its tenant."""

from typing import TYPE_CHECKING

from sessionary.producers.errors import SettingsError
from sessionary.producers.following.follower import SessionFollower
from sessionary.producers.lifetime.conversation_questions import ConversationQuestions
from sessionary.producers.run_ports import LogPosition
from sessionary.producers.session.session import Session
from sessionary.schemas.ids import checked_session_id

if TYPE_CHECKING:  # asyncio takes long to load
    from sessionary.producers.session.async_session import AsyncSession


class FollowQuestions(ConversationQuestions):
    """Following sessions, and what a client asks about conversations and tasks."""

    def follow(self, session: "str | Session | AsyncSession", *, timeout_s: float | None = None) -> SessionFollower:
        """Follow a session: its state as it is committed now, then each change of it.

        The state's content, version, epoch, phase or owner may change, by any process of any
        service of the tenant. Changes that follow each other closely are told as one, the newest;
        heartbeats and refused events are not told. A version or an epoch never falls. The iteration
        ends when the session is archived, and with the client.

            for view in client.follow(session_id):
                print(view.version, view.state_json)

        Of a session that this client works in, pass the object: then the first state includes what
        it sent. An id is enough for all others; nothing is attached. The control API is asked when
        the first state is; a connection that is lost is opened again, with pauses of up to 2 s.

        Args:
            session: A session, or its id.
            timeout_s: End an iteration if there is no change for so long; a later one goes on.
                Default: wait without a limit. For the first state it is always the setting
                `verdict_timeout_s`.

        Returns:
            The follower. Close it, or use it in `with`, to give its connection back.

        Raises:
            Invalid: The id is not a UUID.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            ClientClosed: The client is closed.

        The iteration raises as `SessionFollower.wait_next` does.
        """
        known = session if not isinstance(session, str) else None
        session_id = checked_session_id(session) if isinstance(session, str) else session.session_id
        self._reopen_in_child()
        if not self._gate.open:
            raise self._closed_error()
        follows, first_s = self._ports.follows, self._settings.verdict_timeout_s
        if follows is None:
            raise SettingsError("this client has no control API to follow a session by")
        follows.check_configured()

        def find_after() -> LogPosition | None:
            if known is None:
                return None
            emitter = known.core.emitter
            emitter.check_process()
            return emitter.wait_position(first_s)

        follower = SessionFollower(follows, session_id, find_after, first_s, timeout_s, self._forget_follower)
        self._keep_follower(follower)
        return follower


__all__ = ["FollowQuestions"]
