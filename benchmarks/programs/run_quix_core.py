"""The processor's pure core inside Quix Streams: a stateful `apply`, exactly once.

Arguments: bootstrap servers, group, topic prefix, partitions, state folder, form of the rows. Runs
in the environment of benchmarks/harness/peers.py, with the project's source roots on its path.

A session's state is its row. In the form "avro" it has the bytes of our changelog; "pickle" is
faster, but only this release can read it. Audit records, rejected records and clean-up requests go
to their topics. It does less than the processor: there are no timers (so no session is archived),
no positions, no batch records and no query API.
"""

import pickle
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from quixstreams import State, message_context  # type: ignore[import-not-found]  # see benchmarks/harness/peers.py

from benchmarks.programs.quix_app import make_application, tune_collector
from benchmarks.workload.output_topics import HEAD_BYTES, topics_by_head
from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.topics import TopicNames
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.judge import apply_facts
from sessionary.stream_processors.core.model import EventLog, LogRecord, OutputCause
from sessionary.stream_processors.core.session.effects import SessionRow

_ROW = "row"


class NoOtherRows:
    """Implements `RowLookup`: a state has its session alone."""

    def get_row(self, key: bytes) -> Any:
        return None

    def count_children(self, parent: bytes) -> int:
        return 0


Apply = Callable[[bytes, bytes, int, list[tuple[str, bytes]], State], list[bytes]]


def row_form(name: str) -> tuple[Callable[[bytes], Any], Callable[[SessionRow], bytes]]:
    """Return the functions that read and write a row."""
    if name == "pickle":
        return pickle.loads, lambda row: pickle.dumps(row, protocol=5)
    return Decoder().decode_record, encode_record


def judge_function(topic: str, partitions: int, form: str) -> Apply:
    """Return the function for each event: judge it, store the row, return the records to write."""
    decoder = Decoder()
    read_row, write_row = row_form(form)
    # A restart begins at 0 again; append times rise, so the clock is correct after one record.
    clocks_ms: dict[int, int] = defaultdict(int)

    judge, rows = SESSION_JUDGE, NoOtherRows()

    def apply(
        value: bytes, key: bytes, timestamp_ms: int, headers: list[tuple[str, bytes]], state: State
    ) -> list[bytes]:
        place = message_context()
        now_ms = clocks_ms[place.partition] = max(clocks_ms[place.partition], timestamp_ms)
        stored = state.get_bytes(_ROW)
        row = None if stored is None else read_row(stored)
        outputs = 0

        def next_place() -> OutputCause:
            nonlocal outputs
            outputs += 1
            return OutputCause(place.partition, place.offset, outputs - 1, now_ms, 0)

        record = LogRecord(place.offset, timestamp_ms, key, value, headers or ())
        log = EventLog(topic, place.partition, partitions)
        arrival = judge.read(record, row, decoder, log, now_ms, NEWEST_RULES)
        if arrival is None:
            return []
        facts = judge.decide(row, arrival, rows).facts
        after, emitted = apply_facts(judge, key, row, facts, arrival, next_place)
        if after is not None and after is not row:
            state.set_bytes(_ROW, write_row(after))
        return [encode_record(record) for _, _, record in emitted]

    return apply


def main() -> None:
    bootstrap_servers, group, prefix, partitions, folder, form = sys.argv[1:]
    names = TopicNames.with_prefix(prefix)
    app = make_application(bootstrap_servers, group, folder)
    events = app.topic(names.events, key_deserializer="bytes", value_deserializer="bytes")
    topic_of = topics_by_head(names)
    topics = {
        name: app.topic(name, key_serializer="bytes", value_serializer="bytes") for name in set(topic_of.values())
    }
    frame = app.dataframe(events).apply(
        judge_function(names.events, int(partitions), form), stateful=True, metadata=True, expand=True
    )
    frame = frame.set_headers(
        lambda value, key, timestamp, headers: None
    )  # otherwise each output has the event's headers
    frame.to_topic(lambda value, key, timestamp, headers: topics[topic_of[value[:HEAD_BYTES]]])
    tune_collector()
    app.run()


if __name__ == "__main__":
    main()
