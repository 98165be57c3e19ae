"""The keyed count in Quix Streams, in the environment of benchmarks/harness/peers.py.

Arguments: bootstrap servers, group, source topic, output topic, state folder.

Nothing of the product is imported. The state is bytes, which avoids JSON. The commit interval is
longer than Kafka Streams' 100 ms: Quix writes its changelog when it commits, one record per changed
key, and is faster so.
"""

import sys

from quixstreams import State  # type: ignore[import-not-found]  # in an environment of its own

from benchmarks.programs.quix_app import make_application, tune_collector


def count_event(value: bytes, state: State) -> bytes:
    total = int(state.get_bytes("n", b"0")) + 1
    digits = b"%d" % total
    state.set_bytes("n", digits)
    return digits + b" " + value


def main() -> None:
    bootstrap_servers, group, source, output, folder = sys.argv[1:]
    app = make_application(bootstrap_servers, group, folder)
    events = app.topic(source, key_deserializer="bytes", value_deserializer="bytes")
    counts = app.topic(output, key_serializer="bytes", value_serializer="bytes")
    app.dataframe(events).apply(count_event, stateful=True).to_topic(counts)
    tune_collector()
    app.run()


if __name__ == "__main__":
    main()
