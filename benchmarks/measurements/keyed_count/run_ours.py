"""The keyed count in our processor, with `counting` in place of the session fold.

Arguments: bootstrap servers, group, source topic, output topic, changelog topic.
"""

import asyncio
import logging
import signal
import sys
import tempfile

from benchmarks.measurements.keyed_count.counting import RECORDS_MAX, counting_job
from benchmarks.measurements.keyed_count.job import PARTITIONS
from sessionary.schemas.topics import TopicNames
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.startup import tune_interpreter
from sessionary.stream_processors.worker import Processor


class CountSettings(ProcessorSettings):
    """A processor's settings with free topic names."""

    source: str
    changelog: str

    @property
    def topics(self) -> TopicNames:
        """Topic names; only events and changelog are used."""
        return super().topics._replace(events=self.source, changelog=self.changelog)


async def run_count(settings: CountSettings, output: str, folder: str) -> None:
    """Count until SIGTERM."""
    bounds = PartitionSettings(settings.source, PARTITIONS, records_max=RECORDS_MAX)
    processor = Processor(settings, folder, counting_job(bounds, settings.changelog, output))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, processor.stop)
    await processor.run()


def main() -> None:
    bootstrap_servers, group, source, output, changelog = sys.argv[1:]
    settings = CountSettings(
        bootstrap_servers=bootstrap_servers,
        topic_prefix=group.removesuffix(".processor"),
        partitions=PARTITIONS,
        api_port=0,
        source=source,
        changelog=changelog,
    )
    logging.basicConfig(level=logging.WARNING)
    tune_interpreter()  # as `run_processor` does
    with tempfile.TemporaryDirectory(prefix="keyed-count-") as folder:
        asyncio.run(run_count(settings, output, folder))


if __name__ == "__main__":
    main()
