"""Artifacts: content that is too large for events, kept in a folder or an object store by its hash.

    stores          bodies in a local folder, or at any URL that fsspec knows
    library         artifacts as a program writes and reads them; streams of text

Bodies never pass through Kafka: events have an artifact's id, type, address, size and hash.
"""

from sessionary.producers.artifacts.library import (
    Artifact,
    ArtifactLibrary,
    ArtifactReference,
    ArtifactStream,
    continuation_prompt,
)
from sessionary.producers.artifacts.stores import ArtifactStore, FolderStore, FsspecStore, open_store

__all__ = [
    "Artifact",
    "ArtifactLibrary",
    "ArtifactReference",
    "ArtifactStore",
    "ArtifactStream",
    "FolderStore",
    "FsspecStore",
    "continuation_prompt",
    "open_store",
]
