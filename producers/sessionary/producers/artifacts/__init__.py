"""Artifacts: content that is too large for events, kept in a folder or an object store by its hash.

    artifact        an artifact's identity, and the reference that a message has of it
    stores          bodies in a local folder, or at any URL that fsspec knows
    library         saves and loads artifacts, and reports them in a session
    stream          an artifact that is written in chunks, and continued after a crash

Bodies never pass through Kafka: events have an artifact's id, type, address, size and hash.
"""

from sessionary.producers.artifacts.artifact import Artifact, ArtifactReference
from sessionary.producers.artifacts.library import ArtifactLibrary
from sessionary.producers.artifacts.stores import ArtifactStore, FolderStore, FsspecStore, open_store
from sessionary.producers.artifacts.stream import ArtifactStream, continuation_prompt

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
