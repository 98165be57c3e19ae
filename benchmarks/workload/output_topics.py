"""The topics of a processor's records about events, by the bytes with which they begin."""

from typing import Final

from sessionary.schemas.codec import record_headers
from sessionary.schemas.records import AuditRecord, CleanupRequest, RejectedEvent
from sessionary.schemas.topics import TopicNames

HEAD_BYTES: Final = 10


def topics_by_head(names: TopicNames) -> dict[bytes, str]:
    """Return each topic's name by the first ten bytes of its records.

    A class has several such heads: its records take the oldest form that holds them.
    """
    topics = {AuditRecord: names.audit, RejectedEvent: names.rejected, CleanupRequest: names.cleanup}
    return {head: name for cls, name in topics.items() for head in record_headers(cls)}
