"""Examples as users run them: as processes that find a processor by their environment."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from sessionary.schemas.codec import Event
from sessionary.schemas.events import SessionTerminated
from sessionary.schemas.records import RejectedEvent
from tests.integration.pipeline_rig import TOKEN, PipelineRig
from tests.style.project import ROOT
from tests.support import environment, read_events, read_records

END_S = 300.0  # of a program on a busy machine


class ExamplesRig:
    """Runs examples, which find a pipeline by their environment."""

    def __init__(self, pipeline: PipelineRig, folder: Path) -> None:
        self.pipeline, self._kafka = pipeline, pipeline.kafka
        own = {"control_url": self.pipeline.control_url, "api_token": TOKEN, "spool_dir": str(folder / "spool")}
        own |= {"verdict_timeout_s": "120", "close_timeout_s": "120"}
        self.variables = environment(pipeline.kafka, **own)  # with which a program finds the pipeline
        self._environment = {**os.environ, **self.variables}

    def start_example(self, module: str, *args: object) -> "subprocess.Popen[str]":
        return self.start_program(f"examples.{module}", *args)

    def start_program(self, module: str, *args: object) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-u", "-m", module, *map(str, args)]
        return subprocess.Popen(argv, env=self._environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def run_example(self, module: str, *args: object) -> str:
        """Run an example to its end, and return what it printed."""
        return self.run_program(f"examples.{module}", *args)

    def run_program(self, module: str, *args: object) -> str:
        """Run a program to its end, and return what it printed."""
        with self.start_program(module, *args) as process:
            try:
                output, _ = process.communicate(timeout=END_S)
            finally:
                process.kill()
        assert process.returncode == 0, output
        return output

    def kill_example(self, says: str, module: str, *args: object) -> list[str]:
        """Kill an example by SIGKILL once it has printed a line; return its lines so far."""
        lines: list[str] = []
        with self.start_example(module, *args) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    lines.append(line.rstrip())
                    if says in line:
                        break
            finally:
                process.kill()
        assert process.returncode == -signal.SIGKILL, lines
        return lines

    def events(self, output: str) -> list[Event]:
        """Return the events of the session whose id an example printed."""
        session_id = session_of(output)
        events = [event for event in read_events(self._kafka) if isinstance(event, Event)]
        return [
            event
            for event in events
            if event.envelope.session_id == session_id and event.envelope.event_type != "heartbeat"
        ]

    def rejections(self) -> list[tuple[str, str]]:
        records = read_records(self._kafka, self._kafka.topics.rejected)
        return [(record.event_type or "", record.reason) for record in records if isinstance(record, RejectedEvent)]


def session_of(output: str) -> str:
    found = re.search(r"^session ([0-9a-f-]{36})", output, re.M)
    assert found is not None, output
    return found[1]


def end_of(events: list[Event]) -> str:
    """Return why the session ended.

    It need not be the last event: a thread cannot be cancelled, so a tool may report later.
    """
    (end,) = (event.payload for event in events if isinstance(event.payload, SessionTerminated))
    return end.reason
