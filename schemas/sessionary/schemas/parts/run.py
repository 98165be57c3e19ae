"""Small records of runs (`avro/common/*.avsc`)."""

from typing import NamedTuple

from sessionary.schemas.enums import CheckpointKind


class Checkpoint(NamedTuple):
    """The last checkpoint of a run: how far it got. What it holds is in its event.

    Attributes:
        checkpoint_id: Its id.
        operation: What the run was doing.
        at: When it was saved, ms of log time.
        kind: What the run has reached, if it is one of the usual points.
        stage: The operation's stage.
        processed_count: Items done.
        last_item_id: The last of them.
        bytes_written: Bytes written.
    """

    checkpoint_id: str
    operation: str
    at: int
    kind: CheckpointKind | None = None
    stage: str | None = None
    processed_count: int | None = None
    last_item_id: str | None = None
    bytes_written: int | None = None


class OpenRun(NamedTuple):
    """A run of a session that has not finished."""

    run_id: str
    detached: bool
