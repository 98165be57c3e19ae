"""The machine of artifacts: a row holds what an artifact is, and where; its body is elsewhere.

An artifact has no clock, and vanishes with its run or session. The machine decides on no event:
the session's does (`judge`).
"""

from collections.abc import Sequence

from sessionary.schemas.codec import encode_record, record_headers
from sessionary.schemas.records import ArtifactState
from sessionary.stream_processors.core.artifact.facts import ArtifactMoved
from sessionary.stream_processors.core.dependants.machine import UnclockedMachine
from sessionary.stream_processors.core.machine import RowKind


class ArtifactMachine(UnclockedMachine[ArtifactState]):
    """Implements `Machine` for artifacts."""

    name = "artifact"
    row_kinds: Sequence[RowKind] = (
        RowKind(
            ArtifactState,
            live=False,
            prefixes=record_headers(ArtifactState),
            encode=encode_record,
            is_child=True,
        ),
    )

    def evolve(self, row: ArtifactState | None, fact: ArtifactMoved) -> ArtifactState:
        """Return the row after a fact."""
        return fact.row
