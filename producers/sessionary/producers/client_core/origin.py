"""The content that a new session starts with, if it starts from another session's snapshot."""

from sessionary.producers.client_core.core import ClientCore
from sessionary.producers.errors import Invalid, SessionLost
from sessionary.producers.ports import Origin
from sessionary.producers.run_ports import PAST_S, SnapshotView
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.view import parsed_state


def fetch_origin(
    client: ClientCore, session_id: str, core: SessionCore | None, snapshot_id: str | None, user_id: str
) -> Origin:
    """Return a snapshot of a session of the same user. Blocks.

    Args:
        client: The client of the new session.
        session_id: The session that the new one starts from; it may have ended, or be archived.
        core: The object of that session, whose own events are judged first; None without one.
        snapshot_id: The snapshot, which may be an older one; None: the last one.
        user_id: The user of the new session.

    Raises:
        SessionLost: The tenant has no such session, or its content is gone.
        Invalid: It serves another user, or has no such snapshot.

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
        if snapshot_id is None:
            raise SessionLost(
                f"no session can start from session {session_id}, which the tenant does not have, or which is "
                "archived: of an archived one, name a snapshot in from_snapshot (`v_snapshots` lists them), or give "
                "its content as state"
            ) from lost
        return _fetch_older(client, session_id, snapshot_id, user_id)
    if snapshot_id not in (None, view.snapshot_id):
        return _fetch_older(client, session_id, snapshot_id or "", user_id)
    if view.snapshot_id is None or view.snapshot_state_json is None:
        raise Invalid("invalid_value", f"session {session_id} has no snapshot: give the new session a state instead")
    contents = view.snapshot_state_json, view.state_schema_version, view.data_classes, view.user_id
    return _origin_of(session_id, SnapshotView(view.snapshot_id, *contents), user_id)


def _fetch_older(client: ClientCore, session_id: str, snapshot_id: str, user_id: str) -> Origin:
    """Return a snapshot that is not the last one of a session, or of an archived session."""
    runs = client.ports.runs
    try:
        found = None if runs is None else runs.fetch_snapshot(session_id, snapshot_id, PAST_S)
    except SessionLost as lost:
        raise SessionLost(
            f"no session can start from snapshot {snapshot_id} of session {session_id}: the tenant has no such "
            f"session, or its events have left Kafka ({lost}). `sessionary session at {session_id} "
            f"--snapshot {snapshot_id} --json` has the content while ClickHouse has the events: give it as state"
        ) from lost
    except Invalid as broken:
        if broken.reason != "hash_mismatch":
            raise
        raise Invalid(
            broken.reason,
            f"no session can start from snapshot {snapshot_id} of session {session_id}: what the log has does not lead "
            f"to it ({broken.detail}). Start from the last one, without from_snapshot, or from a state",
        ) from broken
    if found is None:
        raise Invalid(
            "invalid_value",
            f"session {session_id} has no snapshot {snapshot_id}: name one that `v_snapshots` lists, or leave "
            "from_snapshot out to start from the last one",
        )
    return _origin_of(session_id, found, user_id)


def _origin_of(session_id: str, found: SnapshotView, user_id: str) -> Origin:
    if found.user_id not in (None, user_id):
        raise Invalid(
            "invalid_value",
            f"session {session_id} serves another user: a session starts from one of the same user, or from a state",
        )
    contents = parsed_state(found.state_json), found.state_schema_version, found.data_classes
    return Origin(session_id, found.snapshot_id, *contents)
