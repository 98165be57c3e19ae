"""A worker as a process: its start, the signals that end it, and the watch for parts that hang."""

import asyncio
import signal
import tempfile

from sessionary.schemas.codec.catalogue import writer_schemas
from sessionary.schemas.telemetry.role_logs import configure_role_logs
from sessionary.stream_processors.measures import hang_watch
from sessionary.stream_processors.runtime.job import Job
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.startup import tune_interpreter, wait_for_topics
from sessionary.stream_processors.worker import Processor


async def _run_until_signal(settings: ProcessorSettings, folder: str, job: Job | None) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await loop.run_in_executor(None, wait_for_topics, settings, stop.is_set)
    if stop.is_set():
        return
    processor = Processor(settings, folder, job)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, processor.stop)
    if stop.is_set():
        processor.stop()
    watch = hang_watch.HangWatch(processor.read_turns, hang_watch.HUNG_S)
    watch.start()
    try:
        await processor.run()
    finally:
        watch.stop()


def run_processor(settings: ProcessorSettings, job: Job | None = None, role: str = "processor") -> None:
    """Run a worker until SIGTERM or SIGINT, then end gracefully. Blocks; call in the main thread.

    `job`: what is done with partitions; default: `processor_job`. `role` is its name in the log.

    Raises `SettingsError` if a topic is missing or has another number of partitions than the
    settings say, or if the token file cannot be used, and `ProcessorFailed` if the worker cannot go
    on.
    """
    configure_role_logs(role, settings.instance)
    writer_schemas()  # made once; the threads of the first recoveries would each make them
    tune_interpreter()
    with tempfile.TemporaryDirectory(prefix="sessionary-faust-") as folder:
        asyncio.run(_run_until_signal(settings, folder, job))
