"""What can happen to an artifact."""

from typing import NamedTuple

from sessionary.schemas.records import ArtifactState


class ArtifactMoved(NamedTuple):
    """An event made the artifact, or changed it."""

    row: ArtifactState
