"""The client's library of artifacts, by the place that a user names."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from sessionary.producers.artifacts.library import ArtifactLibrary


def open_library(place: "ArtifactLibrary | Path | str | None") -> "ArtifactLibrary | None":
    """Return the library at a place, or the given one; None without a place.

    Raises `SettingsError` if the extra `artifacts` is missing, or fsspec does not know the URL.
    """
    if place is None:
        return None
    from sessionary.producers.artifacts.library import ArtifactLibrary  # most clients have none

    return place if isinstance(place, ArtifactLibrary) else ArtifactLibrary(place)
