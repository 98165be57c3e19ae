"""The keyed count in stock Faust: a table, one output per event, at least once, default settings.

Arguments: bootstrap servers, app id, source topic, output topic, data folder.
"""

import sys

import faust

from benchmarks.measurements.keyed_count.job import PARTITIONS


def main() -> None:
    bootstrap_servers, name, source, output, folder = sys.argv[1:]
    app = faust.App(
        name,
        broker=f"kafka://{bootstrap_servers}",
        store="memory://",
        topic_partitions=PARTITIONS,
        topic_disable_leader=True,
        web_enabled=False,
        datadir=folder,
        key_serializer="raw",
        value_serializer="raw",
    )
    events = app.topic(source, key_type=bytes, value_type=bytes)
    results = app.topic(output, key_type=bytes, value_type=bytes)
    counts = app.Table("counts", default=int, partitions=PARTITIONS, key_type=bytes, value_type=int)

    @app.agent(events)
    async def count(stream: faust.StreamT[bytes]) -> None:
        async for key, value in stream.items():
            counts[key] += 1
            await results.send(key=key, value=b"%d %b" % (counts[key], value))

    faust.Worker(app, loglevel="warning").execute_from_commandline()


if __name__ == "__main__":
    main()
