"""A worker whose judge fails at some events: `python -m tests.support.failing_worker`."""

from sessionary.stream_processors.core.families import CHILDREN
from sessionary.stream_processors.core.family import SessionArrival
from sessionary.stream_processors.core.model import Decision, RowLookup
from sessionary.stream_processors.core.rows import Remains
from sessionary.stream_processors.core.session.effects import SessionRow
from sessionary.stream_processors.core.session.judge import SessionJudge
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.settings import ProcessorSettings


class FailingJudge(SessionJudge):
    """Fails at the events of one type."""

    def __init__(self) -> None:
        super().__init__(CHILDREN)

    def decide(self, row: SessionRow | Remains | None, arrival: SessionArrival, rows: RowLookup) -> Decision:
        if arrival.event is not None and arrival.event.envelope.event_type == "session_activity":
            raise ZeroDivisionError("the record's text")
        return super().decide(row, arrival, rows)


if __name__ == "__main__":
    processor_settings = ProcessorSettings.from_env()
    run_processor(processor_settings, processor_job(processor_settings, FailingJudge()))
