"""The steps of a migration as data, and the changes of state that come with them.

    offered ──(the target has loaded it)──▶ prepared ──(the target has the same state)──▶ completed
       │                                       │
       └───────────────▶ aborted ◀─────────────┘   time is over, called off, three other states

A session that was Active is held while it is prepared. One in Paused or Timeout stays there until
its new owner takes it: a Paused one then is as before, one in Timeout is resumed.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sessionary.schemas.records import SessionState
from sessionary.schemas.types import SessionStateName
from sessionary.stream_processors.core.session.clocks import continue_duration, stop_duration
from sessionary.stream_processors.core.session.transitions import Transition

MISMATCHES_MAX: Final = 3
CLEANUP_REASON: Final = "migrated"
# What the former owner is asked to release; the session itself goes on elsewhere.
CLEANUP_ACTIONS: Final = ("memory_cleanup", "close_connection", "release_context")
OFFER_STATES: Final[frozenset[SessionStateName]] = frozenset({"Active", "Paused", "Timeout"})
MIGRATION_EVENTS: Final = frozenset(
    {
        "session_migration_offered",
        "session_migration_loaded",
        "session_migration_accepted",
        "session_migration_completed",
        "session_migration_aborted",
    }
)


def _forget_release(state: SessionState, now_ms: int) -> SessionState:
    return state._replace(released_at=None)


# The fact that completes a migration has raised the epoch already; one that is aborted raises none.
HELD: Final = Transition("T04", "Active", "session_migration_loaded", "Paused", None, "processor", effect=stop_duration)
LET_GO: Final = Transition(
    "T05", "Paused", "session_migration_aborted", "Active", "processing", "processor", effect=continue_duration
)
TAKEN: Final[Mapping[SessionStateName, Transition]] = MappingProxyType(
    {
        "Active": Transition(
            "T05",
            "Paused",
            "session_migration_accepted",
            "Active",
            "processing",
            "processor",
            effect=continue_duration,
        ),
        "Timeout": Transition(
            "T07",
            "Timeout",
            "session_migration_accepted",
            "Active",
            "processing",
            "processor",
            effect=_forget_release,
        ),
    }
)
"""By the session's state before it was prepared; a session that was Paused makes no transition."""
