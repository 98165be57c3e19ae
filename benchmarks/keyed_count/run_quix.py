"""The keyed count in Quix Streams; runs in the environment of benchmarks/peers.py, so it imports nothing of ours.

Arguments: bootstrap servers, group, source topic, output topic, state folder.

The state is bytes, which spares its JSON; a longer commit interval than Kafka Streams' 100 ms suits it better, as it
writes its changelog, one record per key touched, when it commits.
"""

import gc
import sys

from quixstreams import Application, State  # type: ignore[import-not-found]  # in an environment of its own

COMMIT_INTERVAL_S = 1.0


def count(value: bytes, state: State) -> bytes:
    total = int(state.get_bytes("n", b"0")) + 1
    digits = b"%d" % total
    state.set_bytes("n", digits)
    return digits + b" " + value


def main() -> None:
    bootstrap_servers, group, source, output, folder = sys.argv[1:]
    app = Application(
        broker_address=bootstrap_servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=COMMIT_INTERVAL_S,
        state_dir=folder,
        loglevel="WARNING",
        producer_extra_config={"linger.ms": 5, "queue.buffering.max.messages": 1_000_000},
    )
    events = app.topic(source, key_deserializer="bytes", value_deserializer="bytes")
    counts = app.topic(output, key_serializer="bytes", value_serializer="bytes")
    app.dataframe(events).apply(count, stateful=True).to_topic(counts)
    gc.set_threshold(50_000, 20, 100)  # as our own processor does
    app.run()


if __name__ == "__main__":
    main()
