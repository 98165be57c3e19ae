"""An artifact's identity, and the reference that a message has of it. Pure."""

import re
from typing import NamedTuple

from sessionary.producers.errors import Invalid

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ArtifactReference(NamedTuple):
    """What stands for an artifact's body: its type, and the SHA-256 of its bytes as hex."""

    artifact_type: str
    sha256: str

    def __str__(self) -> str:
        """Return the text for messages and results, `artifact:<type>:<sha256>`."""
        return f"artifact:{self.artifact_type}:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> "ArtifactReference":
        """Read what `str` gives. Raises `Invalid` for any other text."""
        scheme, _, rest = text.partition(":")
        artifact_type, _, sha256 = rest.rpartition(":")
        if scheme != "artifact" or not _TYPE.fullmatch(artifact_type) or not _SHA256.fullmatch(sha256):
            raise Invalid("invalid_value", f"{text!r} is no reference of an artifact: artifact:<type>:<sha256 as hex>")
        return cls(artifact_type, sha256)


class Artifact(NamedTuple):
    """A complete artifact.

    Attributes:
        artifact_id: UUID; two artifacts may have the same body.
        artifact_type: For example `markdown`, `json` or `pdf_text`.
        uri: Where its body is.
        sha256: Of the body, as hex.
        size_bytes: Of the body.
    """

    artifact_id: str
    artifact_type: str
    uri: str
    sha256: str
    size_bytes: int

    @property
    def reference(self) -> ArtifactReference:
        """What a message has of it."""
        return ArtifactReference(self.artifact_type, self.sha256)


def checked_type(artifact_type: str) -> str:
    """Return `artifact_type`. Raises `Invalid` unless it fits into a reference."""
    if not _TYPE.fullmatch(artifact_type):
        raise Invalid(
            "invalid_value",
            f"artifact type {artifact_type!r}: use 1 to 64 letters, digits, '_', '.' or '-', a letter or digit first",
        )
    return artifact_type
