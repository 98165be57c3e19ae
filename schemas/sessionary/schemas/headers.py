"""Record headers: CloudEvents in Kafka's binary mode and W3C trace context.

Sources: CloudEvents 1.0, Kafka protocol binding §3.2 (attributes as `ce_*`, `content-type`); W3C Trace Context.
"""

import re
from datetime import UTC, datetime

from sessionary.schemas.common import Envelope

CONTENT_TYPE = b"application/avro"
TYPE_PREFIX = "sessionary."
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def event_headers(envelope: Envelope, traceparent: str | None = None) -> list[tuple[str, bytes]]:
    """Return the headers of one event; a malformed `traceparent` is left out, as the specification asks."""
    headers = [
        ("content-type", CONTENT_TYPE),
        ("ce_specversion", b"1.0"),
        ("ce_id", envelope.event_id.encode()),
        ("ce_source", f"/{envelope.tenant_id}/{envelope.service_id}".encode()),
        ("ce_type", (TYPE_PREFIX + envelope.event_type).encode()),
        ("ce_subject", envelope.session_id.encode()),
        ("ce_time", datetime.fromtimestamp(envelope.occurred_at / 1e6, UTC).isoformat().encode()),
    ]
    if traceparent is not None and _TRACEPARENT.fullmatch(traceparent):
        headers.append(("traceparent", traceparent.encode()))
    return headers


__all__ = ["CONTENT_TYPE", "TYPE_PREFIX", "event_headers"]
