"""The keyed count in Quix Streams; runs in the environment of benchmarks/harness/peers.py: nothing of the product is imported.

Arguments: bootstrap servers, group, source topic, output topic, state folder.

The state is bytes, which spares its JSON; a longer commit interval than Kafka Streams' 100 ms suits it better, as it
writes its changelog, one record per key touched, when it commits.
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
