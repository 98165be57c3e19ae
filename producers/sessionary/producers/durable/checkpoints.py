"""Checkpoints with data: saved by the name of an operation, and loaded by it."""

from collections.abc import Sequence

from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.call_keys import checked_text
from sessionary.producers.durable.large_values import CHECKPOINT_DATA, load_value, store_value
from sessionary.producers.durable.recorder import Recorder, wait_recorded
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.producers.run_ports import CheckpointView
from sessionary.schemas.events import CheckpointSaved
from sessionary.schemas.limits import CHECKPOINTS_KEPT, NAME_CHARACTERS_MAX


def checked_operation(operation: str) -> str:
    """Return the name of an operation. Raises `Invalid`."""
    if isinstance(operation, str) and 0 < len(operation) <= NAME_CHARACTERS_MAX:
        return checked_text(operation, "the name of an operation")
    raise Invalid("invalid_value", f"an operation is named {operation!r:.80}: use a text of 1 to {NAME_CHARACTERS_MAX}")


def send_checkpoint(recorder: Recorder, saved: CheckpointSaved, data: Json, fields: EnvelopeFields) -> None:
    """Save a checkpoint with data; returns once the broker has it. Raises as `Session.emit`.

    Large data are kept by the client's library, and the event has a reference.
    """
    checked_operation(saved.operation)
    stored = store_value(recorder, data, "data", CHECKPOINT_DATA, fields)
    sent = recorder.send(saved._replace(data_json=stored.text), fields)
    if recorder.reads is not None:  # a client that is turned off has no broker
        wait_recorded(sent, f"checkpoint {saved.checkpoint_id}", recorder.timeout_s)


def fetch_checkpoints(recorder: Recorder, run_id: str | None, operation: str | None) -> Sequence[CheckpointView]:
    """Return the checkpoints of an operation, the oldest first; None: of all, without data."""
    if recorder.reads is None:
        return ()
    after, timeout_s = recorder.wait_sent(recorder.timeout_s), recorder.timeout_s
    return recorder.known.fetch_checkpoints(recorder.key.session_id, run_id, operation, after, timeout_s)


def load_checkpoint(recorder: Recorder, run_id: str | None, operation: str, checkpoint_id: str | None) -> Json:
    """Return the data of the last checkpoint of an operation, or of the one of an id. Blocks.

    None if the operation has no checkpoint. The events that were sent before are judged first.

    Raises:
        Invalid: There is none of this id, or it is no longer kept.

    Also raises as `Session.sync` and `load_value` do.
    """
    found = fetch_checkpoints(recorder, run_id, checked_operation(operation))
    if checkpoint_id is not None:
        saved = find_checkpoint(found, checkpoint_id, f"operation {operation!r}")
    elif found:
        saved = found[-1]
    else:
        return None
    return load_value(recorder.artifacts, saved.data_json)


def find_checkpoint(found: Sequence[CheckpointView], checkpoint_id: str, of_what: str) -> CheckpointView:
    """Return the checkpoint of an id. Raises `Invalid`, which names `of_what`."""
    for each in found:
        if each.checkpoint_id == checkpoint_id:
            return each
    raise Invalid(
        "invalid_value",
        f"{of_what} has no checkpoint {checkpoint_id}: the last {CHECKPOINTS_KEPT} of each operation are kept, if they "
        "have data; v_checkpoints in ClickHouse has the ids",
    )


def find_in_run(recorder: Recorder, run_id: str, checkpoint_id: str) -> CheckpointView:
    """Return a checkpoint of any operation of a run, with data. Raises as `load_checkpoint`."""
    head = find_checkpoint(fetch_checkpoints(recorder, run_id, None), checkpoint_id, f"run {run_id}")
    return find_checkpoint(fetch_checkpoints(recorder, run_id, head.operation), checkpoint_id, f"run {run_id}")
