"""A worker whose job has a second machine: `python -m tests.support.tally_worker`."""

from collections.abc import Sequence

from sessionary.stream_processors.core.machine import AnyMachine
from sessionary.stream_processors.families import all_machines
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.runtime.job import machines_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.support.tally_machine import TallyMachine

# Short, so that tallies are closed, refuse messages and vanish within a test.
SILENCE_MS, STUB_MS = 2_500, 2_000


def two_machines() -> Sequence[AnyMachine]:
    """Return the machines of this worker."""
    return (*all_machines(), TallyMachine(SILENCE_MS, STUB_MS))


if __name__ == "__main__":
    processor_settings = ProcessorSettings.from_env()
    run_processor(processor_settings, machines_job(processor_settings, two_machines()))
