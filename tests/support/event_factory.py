"""Encodes a session's events as its agent would; a test may replace any field."""

from functools import cache
from typing import Any

from sessionary.schemas.codec import Event, encode_event, encode_record
from sessionary.schemas.events import PAYLOADS, Payload
from sessionary.schemas.ids import SessionKey, derived_id, event_snapshot_id, snapshot_hash, snapshot_number
from sessionary.schemas.records import Tick
from sessionary.schemas.types import CleanupAction, Envelope, ErrorInfo, Limits, Snapshot
from tests.support.values import example

TICK = encode_record(Tick("tests"))


def snapshot_id(name: str) -> str:
    """Return the id of the snapshot that tests call so; an id as it is."""
    return name if snapshot_number(name) is not None else event_snapshot_id(name)


def snapshot(name: str, state_json: str = "{}", parent: str | None = None, context: str | None = None) -> Snapshot:
    """Return a snapshot; without a parent, an `EventFactory` lets it follow the last one.

    Its id is `snapshot_id(name)`.
    """
    made = Snapshot(
        snapshot_id(name), None if parent is None else snapshot_id(parent), 1, state_json, context, "", "full", "none"
    )
    return made._replace(content_hash=snapshot_hash(made))


# What a client sends unless the test says otherwise.
DEFAULT_FIELDS: dict[str, dict[str, Any]] = {
    "session_created": {
        "limits": Limits(),
        "snapshot": snapshot("first"),
        "parent_session_id": None,
        "restored_from_snapshot_id": None,
        "external_id": None,
    },
    "session_phase_changed": {"phase": "validating"},
    "session_start_failed": {"reason": "invalid_config"},
    "session_paused": {
        "kind": "manual",
        "snapshot": snapshot("paused"),
        "question": None,
        "answer_ms": None,
        "as_operator": False,
        "hold_ms": None,
    },
    "session_resumed": {
        "snapshot_id": None,
        "approved": None,
        "question_id": None,
        "message": None,
        "as_operator": False,
    },
    "session_errored": {"error": ErrorInfo("retryable", "boom", "it broke")},
    "session_terminated": {"reason": "closed", "snapshot": None, "as_operator": False},
    "state_updated": {
        "base_version": 1,
        "new_version": 2,
        "state_json": '{"step": 1}',
        "updating_at": None,
        "persisting_at": None,
    },
    "txn_committed": {"base_version": 1, "new_version": 2, "state_json": '{"step": 1}'},
    "session_rolled_back": {"snapshot_id": snapshot_id("first"), "base_version": 1, "new_version": 2},
    "run_completed": {"duration_ms": None},
    "run_resumed": {"reason": None},
    "run_failed": {"reason": None},
    "step_started": {"limit_ms": None, "reason": None},
    "checkpoint_saved": {"kind": None},
    "heartbeat": {"elapsed_s": None},
    "session_migration_offered": {
        "migration_id": "m1",
        "target_service": "shipping",
        "ttl_ms": 60_000,
        "reason": None,
        "as_operator": False,
    },
    "session_migration_loaded": {"migration_id": "m1"},
    "session_migration_accepted": {"migration_id": None, "version": None, "content_hash": None},
    "session_migration_aborted": {"migration_id": None, "as_operator": False},
    "session_taken_over": {"reason": None, "as_operator": False},
    "requests_repeated": {"reason": None, "as_operator": True},
    "agent_registered": {
        "role": "writer",
        "agent_id": None,
        "service_id": None,
        "as_operator": False,
        "known_role": "UNKNOWN",
    },
    "agent_task_updated": {
        **dict.fromkeys(("from_snapshot_id", "to_snapshot_id", "agent_id", "result_json", "artifact_id")),
        "task": "plan",
        "completed": False,
        "shared_key": None,
    },
    "context_synced": {"from_snapshot_id": None},
    # Without a key of their own, calls are plain work.
    "tool_call_started": {"idem_key": "", "limit_ms": None},
    **{f"tool_call_{end}": {"idem_key": ""} for end in ("succeeded", "failed", "resolved")},
    "snapshot_created": {"snapshot": snapshot("later")},
    "resources_released": {
        "actions": [CleanupAction("close_connection", True, 5), CleanupAction("clear_context", False, 6, "stuck")],
        "bytes_released": 1_000,
        "host_lost": False,
    },
}


_ENVELOPE: Envelope = example(Envelope)._replace(run_id=None, actor=None)


@cache  # building an example reads annotations, which is slow
def _default_payload(event_type: str) -> Payload:
    payload: Payload = example(PAYLOADS[event_type])._replace(**DEFAULT_FIELDS.get(event_type, {}))
    return payload


def payload_of(event_type: str, **fields: Any) -> Payload:
    return _default_payload(event_type)._replace(**fields)


class EventFactory:
    """One agent process of one session; counts its sequence numbers."""

    def __init__(self, session: str = "s", tenant: str = "acme", service: str = "billing", producer: str = "p") -> None:
        self.key = SessionKey(tenant, derived_id(tenant, session))
        self.service, self.producer, self.seq, self.epoch = service, producer, 0, 1
        self.head: str | None = None  # of the session's chain of snapshots, as the agent knows it
        self.taken = {snapshot_id("first")}

    def envelope(self, event_type: str, **fields: Any) -> Envelope:
        """Return the next envelope; an explicit `producer_seq` does not advance the count."""
        if event_type != "heartbeat" and "producer_seq" not in fields:
            self.seq += 1
        envelope = _ENVELOPE._replace(
            event_id=derived_id(*self.key, self.producer, event_type, self.seq),
            event_type=event_type,
            tenant_id=self.key.tenant_id,
            session_id=self.key.session_id,
            user_id="u1",
            agent_id="agent-1",
            service_id=self.service,
            epoch=self.epoch,
            producer_id=self.producer,
            producer_seq=0 if event_type == "heartbeat" else self.seq,
            run_id=None,
            run_seq=None,
            step_id=None,
            data_classes=("personal",),
            context_bytes=None,
        )
        return envelope._replace(**fields)

    def event_bytes(self, event_type: str, envelope: dict[str, Any] | None = None, **fields: Any) -> bytes:
        payload: Any = payload_of(event_type, **fields)
        content = getattr(payload, "snapshot", None)
        if content is not None and content.parent_snapshot_id is None and event_type != "session_created":
            taken = content.snapshot_id  # a second one of a name has another id
            unused = snapshot_id(f"{taken} {self.producer} {self.seq}") if taken in self.taken else taken
            self.taken.add(taken)
            payload = payload._replace(snapshot=content._replace(snapshot_id=unused, parent_snapshot_id=self.head))
        return encode_event(Event(self.envelope(event_type, **(envelope or {})), payload))
