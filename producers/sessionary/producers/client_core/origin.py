"""The content that a new session starts with, if it starts from another session's snapshot."""

from sessionary.producers.client_core.core import ClientCore
from sessionary.producers.errors import Invalid, SessionLost
from sessionary.producers.ports import Origin, SessionView
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.view import parsed_state


def fetch_origin(
    client: ClientCore, session_id: str, core: SessionCore | None, snapshot_id: str | None, user_id: str
) -> Origin:
    """Return the last snapshot of a session of the same user. Blocks.

    Args:
        client: The client of the new session.
        session_id: The session that the new one starts from.
        core: The object of that session, whose own events are judged first; None without one.
        snapshot_id: The id that the snapshot must have; None: any.
        user_id: The user of the new session.

    Raises:
        SessionLost: The tenant has no such session, or it is archived.
        Invalid: It serves another user, or its last snapshot is not `snapshot_id`.

    Otherwise raises as `Session.sync` does.
    """
    client.reopen_in_child()
    if not client.gate.open:
        raise client.closed_error()
    control, timeout_s = client.ports.control, client.settings.verdict_timeout_s
    control.check_configured()
    after = None if core is None else core.emitter.wait_position(timeout_s)
    try:
        view = control.fetch_session(session_id, after, timeout_s)
    except SessionLost as lost:
        raise SessionLost(
            f"no session can start from session {session_id}, which the tenant does not have, or which is archived: "
            "name another one in from_session, or give its content as state"
        ) from lost
    return _check_view(view, session_id, snapshot_id, user_id)


def _check_view(view: SessionView, session_id: str, snapshot_id: str | None, user_id: str) -> Origin:
    if view.user_id not in (None, user_id):
        raise Invalid(
            "invalid_value",
            f"session {session_id} serves another user: a session starts from one of the same user, or from a state",
        )
    if view.snapshot_id is None or view.snapshot_state_json is None:
        raise Invalid("invalid_value", f"session {session_id} has no snapshot: give the new session a state instead")
    if snapshot_id not in (None, view.snapshot_id):
        raise Invalid(
            "invalid_value",
            f"snapshot {snapshot_id} is not the last one of session {session_id}, which is {view.snapshot_id}: leave "
            "from_snapshot out to start from that",
        )
    parts = view.snapshot_id, parsed_state(view.snapshot_state_json), view.state_schema_version, view.data_classes
    return Origin(session_id, *parts)
