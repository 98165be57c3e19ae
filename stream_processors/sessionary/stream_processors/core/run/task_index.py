"""Which sessions the tasks of a partition belong to: tasks are asked for by their id alone."""

from sessionary.schemas.ids import SessionKey, is_task_id, split_run_key


class TaskIndex:
    """The runs of a partition whose ids are those of tasks, by tenant and id."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add_run(self, key: bytes) -> None:
        """Take the key of a run's row; does nothing if the run is no task."""
        tenant_id, session_id, run_id = split_run_key(key)
        if self._sessions.get((tenant_id, run_id)) == session_id:
            return  # as for each further event of a task
        if is_task_id(run_id, SessionKey(tenant_id, session_id)):
            self._sessions[tenant_id, run_id] = session_id

    def drop_run(self, key: bytes) -> None:
        """Forget the run whose row had this key."""
        tenant_id, session_id, run_id = split_run_key(key)
        if self._sessions.get((tenant_id, run_id)) == session_id:
            del self._sessions[tenant_id, run_id]

    def find_session(self, tenant_id: str, task_id: str) -> SessionKey | None:
        """Return the session of a tenant's task; None if there is no such task."""
        session_id = self._sessions.get((tenant_id, task_id))
        return None if session_id is None else SessionKey(tenant_id, session_id)
