"""The families of rows that a processor keeps: one machine each. A new family is added here."""

from collections.abc import Sequence

from sessionary.stream_processors.core.agent.machine import AgentMachine
from sessionary.stream_processors.core.artifact.machine import ArtifactMachine
from sessionary.stream_processors.core.call.machine import CallMachine
from sessionary.stream_processors.core.machine import AnyMachine
from sessionary.stream_processors.core.message.machine import MessageMachine
from sessionary.stream_processors.core.run.machine import RunMachine
from sessionary.stream_processors.core.session.machine import SessionMachine
from sessionary.stream_processors.core.step.machine import StepMachine
from sessionary.stream_processors.runtime.job import Job, machines_job
from sessionary.stream_processors.settings import ProcessorSettings


def all_machines() -> Sequence[AnyMachine]:
    """Return every machine; the first one's rows are under the records' own keys."""
    of_sessions = ArtifactMachine(), MessageMachine(), AgentMachine()
    return SessionMachine(), RunMachine(), StepMachine(), CallMachine(), *of_sessions


def processor_job(settings: ProcessorSettings) -> Job:
    """Return the job of a processor."""
    return machines_job(settings, all_machines())
