"""A worker whose judge fails at some events: `python -m tests.support.failing_worker`."""

from collections.abc import Sequence

from sessionary.stream_processors.core.machine import AnyMachine, Arrival, Decision, Remains
from sessionary.stream_processors.core.session.effects import SessionRow
from sessionary.stream_processors.core.session.machine import SessionMachine
from sessionary.stream_processors.families import all_machines
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.runtime.job import machines_job
from sessionary.stream_processors.settings import ProcessorSettings


class FailingMachine(SessionMachine):
    """Fails at the events of one type."""

    def decide(self, row: SessionRow | Remains | None, arrival: Arrival) -> Decision:
        if arrival.event is not None and arrival.event.envelope.event_type == "session_activity":
            raise ZeroDivisionError("the record's text")
        return super().decide(row, arrival)


def failing_machines() -> Sequence[AnyMachine]:
    """Return the machines of this worker."""
    return [FailingMachine() if isinstance(machine, SessionMachine) else machine for machine in all_machines()]


if __name__ == "__main__":
    processor_settings = ProcessorSettings.from_env()
    run_processor(processor_settings, machines_job(processor_settings, failing_machines()))
