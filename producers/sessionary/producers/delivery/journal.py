"""The journal: one NDJSON line for each event that was delivered or lost, for audits."""

import json
import os
from pathlib import Path

from sessionary.producers.ports import OnError, OutRecord, Receipt


class Journal:
    """Appends each line in one write, so that several processes may share a file."""

    def __init__(self, path: Path, on_error: OnError) -> None:
        """Open the file. Raises `OSError`. Later write errors go to `on_error`, once."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._on_error = on_error
        self._failed = False

    def append_line(self, record: OutRecord, receipt: Receipt) -> None:
        """Write the event's line. Never raises."""
        line = {
            "event_id": record.event_id,
            "event_type": record.event_type,
            "tenant_id": record.tenant_id,
            "session_id": record.session_id,
            "producer_id": record.producer_id,
            "producer_seq": record.producer_seq,
            "partition": receipt.partition,
            "offset": receipt.offset,
            "error": receipt.error,
        }
        try:
            os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._on_error(error)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
