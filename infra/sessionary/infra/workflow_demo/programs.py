"""The processes of the workflow example: its two services, and the agent."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.examples import example_folder
from sessionary.infra.local.process import Child

# The step in which the agent is killed, and the kind of the answer that it waits for then.
HELD_ANSWERS: Final = {"fetch_issue": "issues", "search_kb": "articles", "notify_team": "messages"}
EXAMPLE: Final = example_folder(Path(__file__), "workflow")
_STOP_S = 5.0


class Programs:
    """The example's processes, with their logs in `folder`."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`environ`: the variables of the agent's client."""
        self.messages = folder / "messages" / "messages.ndjson"
        self._folder = folder
        self._environ = {**os.environ, **environ, "PYTHONUNBUFFERED": "1"}

    @contextmanager
    def running_services(self, kill_at: str) -> Iterator[Child]:
        """Run both services inside the context; the first answer in step `kill_at` is held back."""
        hold = ("--hold", HELD_ANSWERS[kill_at])
        services = self._start("services", str(self.messages.parent), *hold)
        try:
            yield services
        finally:
            services.stop(_STOP_S)

    def start_agent(self, name: str, url: str, session_id: str, issue: str) -> Child:
        """Start the agent as a process that is called `name`."""
        return self._start("workflow", url, session_id, issue, log=name)

    def _start(self, module: str, *arguments: str, log: str | None = None) -> Child:
        program = EXAMPLE / f"{module}.py"
        if not program.is_file():
            raise StartFailed(f"the workflow example is not there: {program}")
        return Child([sys.executable, str(program), *arguments], self._folder / f"{log or module}.log", self._environ)


__all__ = ["EXAMPLE", "HELD_ANSWERS", "Programs"]
