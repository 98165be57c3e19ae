"""The client's question about a conversation, of any session of its tenant."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessionary.producers.lifetime.task_questions import TaskQuestions
from sessionary.producers.run_ports import MessageView
from sessionary.producers.session.conversation import LAST_DEFAULT, Turns, check_last, load_contents
from sessionary.producers.session.session import Session
from sessionary.schemas.ids import checked_session_id

if TYPE_CHECKING:  # asyncio takes long to load
    from sessionary.producers.session.async_session import AsyncSession


class ConversationQuestions(TaskQuestions):
    """What a client asks about conversations, and about tasks."""

    def conversation(
        self, session: "str | Session | AsyncSession", last: int = LAST_DEFAULT, *, load_artifacts: bool = True
    ) -> Sequence[MessageView]:
        """Return the last turns of a session's conversation in order, whichever process sent them.

        Of a session that this client works in, pass the object: then what it sent is among them. An
        id is enough for all others; nothing is attached.

        Args:
            session: A session, or its id.
            last: How many turns, from 0 to 200.
            load_artifacts: Load large texts from the library. If not, `content` is the reference.

        Raises as `Session.conversation` does, and `Invalid` for an id that is not a UUID.
        """
        if not isinstance(session, str):
            return Turns(session.core).read(last, load_artifacts)
        session_id = checked_session_id(session)
        check_last(last)
        self._reopen_in_child()
        runs, timeout_s = self._ports.runs, self._settings.verdict_timeout_s
        if runs is None:
            return ()
        messages = runs.fetch_messages(session_id, last, None, timeout_s)
        return load_contents(messages, self._artifacts) if load_artifacts else messages


__all__ = ["ConversationQuestions"]
