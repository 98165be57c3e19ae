"""A worker with a family of rows that only tests have: `python -m tests.support.tally_worker`."""

from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.support.tally_family import tally_judge

SILENCE_MS = 1_000  # so that tallies are closed, and reject messages, within a test

if __name__ == "__main__":
    processor_settings = ProcessorSettings.from_env()
    run_processor(processor_settings, processor_job(processor_settings, tally_judge(SILENCE_MS)))
