"""The processor's pure core inside Quix Streams: a stateful `apply`, exactly once.

Arguments: bootstrap servers, group, topic prefix, partitions, state folder, form of the rows. Runs in the environment
of benchmarks/peers.py, with the project's source roots on its path.

The row is the value of the session's state: in the form "avro", as the bytes that our changelog holds; in the form
"pickle", quicker, but readable by this very release only. Audit records, refusals and clean-up requests go to their
topics. There are no timers here, so no session is archived, and no position, batch record
or query API: less work than the processor does.
"""

import pickle
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from quixstreams import State, message_context  # type: ignore[import-not-found]  # see benchmarks/peers.py

from benchmarks.quix_app import exactly_once, tune
from sessionary.schemas.codec import Decoder, encode_record, record_header
from sessionary.schemas.records import AuditRecord, CleanupRequest, Gravestone, RejectedEvent, SessionState
from sessionary.schemas.topics import TopicNames
from sessionary.stream_processors.core import trail
from sessionary.stream_processors.core import verdict as core_verdict
from sessionary.stream_processors.core.partition import LogRecord

_ROW = "row"
Row = SessionState | Gravestone
Apply = Callable[[bytes, bytes, int, list[tuple[str, bytes]], State], list[bytes]]


def row_form(name: str) -> tuple[Callable[[bytes], Any], Callable[[Row], bytes]]:
    """Return how a row is read and written."""
    if name == "pickle":
        return pickle.loads, lambda row: pickle.dumps(row, protocol=5)
    return Decoder().decode_record, encode_record


def judging(topic: str, partitions: int, form: str) -> Apply:
    """Return what is applied to each event: judge it, keep the row, return the records to write."""
    decoder = Decoder()
    read_row, write_row = row_form(form)
    clocks_ms: dict[int, int] = defaultdict(int)  # append time never goes back for long; a restart begins with it anew

    def apply(
        value: bytes, key: bytes, timestamp_ms: int, headers: list[tuple[str, bytes]], state: State
    ) -> list[bytes]:
        place = message_context()
        now_ms = clocks_ms[place.partition] = max(clocks_ms[place.partition], timestamp_ms)
        stored = state.get_bytes(_ROW)
        row = None if stored is None else read_row(stored)
        sources = 0

        def source() -> trail.Source:
            nonlocal sources
            sources += 1
            return trail.Source(place.partition, place.offset, sources - 1, now_ms, 0)

        record = LogRecord(place.offset, timestamp_ms, key, value, headers or ())
        arrival = core_verdict.Arrival(record, row, place.partition, partitions, now_ms)
        verdict = core_verdict.judge(arrival, decoder, source)
        if isinstance(verdict, core_verdict.Applied | core_verdict.Rejected):
            if verdict.row is not None and verdict.row is not row:
                state.set_bytes(_ROW, write_row(verdict.row))
            return records_of(verdict, record, topic, place.partition)
        return []

    return apply


def records_of(
    verdict: core_verdict.Applied | core_verdict.Rejected, record: LogRecord, topic: str, partition: int
) -> list[bytes]:
    """Return what a verdict has to say, encoded; each record's own header names its class."""
    lines = [encode_record(line) for line in verdict.audits]
    if isinstance(verdict, core_verdict.Applied):
        return lines if verdict.cleanup is None else [*lines, encode_record(verdict.cleanup)]
    return [*lines, encode_record(verdict.dead_letter(record, topic, partition))]


def main() -> None:
    bootstrap_servers, group, prefix, partitions, folder, form = sys.argv[1:]
    names = TopicNames.with_prefix(prefix)
    app = exactly_once(bootstrap_servers, group, folder)
    events = app.topic(names.events, key_deserializer="bytes", value_deserializer="bytes")
    places = {
        record_header(cls): app.topic(name, key_serializer="bytes", value_serializer="bytes")
        for cls, name in (
            (AuditRecord, names.audit),
            (RejectedEvent, names.rejected),
            (CleanupRequest, names.cleanup),
        )
    }
    width = len(record_header(AuditRecord))
    frame = app.dataframe(events).apply(
        judging(names.events, int(partitions), form), stateful=True, metadata=True, expand=True
    )
    frame = frame.set_headers(lambda value, key, timestamp, headers: None)  # else each output carries the event's
    frame.to_topic(lambda value, key, timestamp, headers: places[value[:width]])
    tune()
    app.run()


if __name__ == "__main__":
    main()
