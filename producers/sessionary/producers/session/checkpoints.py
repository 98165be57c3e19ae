"""Checkpoints of a session, or of the run in whose block the caller is."""

import uuid

from sessionary.producers.context.scope import EventMetadata, complete_fields, envelope_fields
from sessionary.producers.delivery.emitter import NO_FIELDS
from sessionary.producers.durable.checkpoints import load_checkpoint, send_checkpoint
from sessionary.producers.ports import Json
from sessionary.producers.session.core import SessionCore
from sessionary.schemas.events import CheckpointSaved


class Checkpoints:
    """The checkpoints of one session. Thread-safe; the methods block."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def save(self, operation: str, data: Json, stage: str | None, metadata: EventMetadata) -> str:
        """Save a checkpoint; return its id once the broker has it."""
        checkpoint_id = str(uuid.uuid4())
        saved = CheckpointSaved(checkpoint_id, operation, stage)
        fields = complete_fields(self._core.session_id, envelope_fields(metadata))
        send_checkpoint(self._core.recorder(), saved, data, fields)
        return checkpoint_id

    def load(self, operation: str, checkpoint_id: str | None) -> Json:
        """Return the data of the operation's last checkpoint, or of the one of an id."""
        core = self._core
        core.view.require_held()
        run_id = complete_fields(core.session_id, NO_FIELDS).run_id
        return load_checkpoint(core.recorder(), run_id, operation, checkpoint_id)
