"""The sources of readers and writers: every schema that this version knows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from sessionary.schemas.codec.catalogue import Json, writer_schemas
from sessionary.schemas.codec.compiled_helpers import module_name
from sessionary.schemas.codec.formats import format_by_name


class KnownSchema(NamedTuple):
    """A schema with which bytes are read and written.

    Attributes:
        module: Name of the module of its functions; it has the schema's fingerprint.
        schema: The schema, self-contained, without logical types.
        cls: What is read and written; of an event, the class of its payload.
        is_event: It has an envelope.
    """

    module: str
    schema: dict[str, Json]
    cls: type[Any]
    is_event: bool


def known_schemas() -> Iterator[KnownSchema]:
    """Yield today's schemas, and those of releases, whose class there is still."""
    for fingerprint, writer in sorted(writer_schemas().items()):
        format_ = format_by_name(writer.full_name)
        if format_ is not None:
            name = module_name(writer.full_name, fingerprint)
            yield KnownSchema(name, writer.parsed, format_.cls, format_.is_event)
