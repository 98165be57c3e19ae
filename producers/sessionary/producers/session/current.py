"""The session whose block the current code runs in."""

from sessionary.producers.context.scope import active_session
from sessionary.producers.session.async_session import AsyncSession
from sessionary.producers.session.session import Session


def current_session() -> Session | AsyncSession | None:
    """Return the session whose `with` block the current code runs in; None outside any.

    Tasks, and threads and calls of thread pools that begin in the block, inherit it; those that
    live longer no longer see it once the block was left. In another process it is None.
    """
    found = active_session()
    return found if isinstance(found, Session | AsyncSession) else None
