"""Runs side by side in one client, each with steps, tool calls, and one large artifact.

python -m tests.support.many_runs FOLDER RUNS STEPS CALLS MEGABYTES

One run is made before the others, so that what they add to the process's memory can be reported.
Prints a JSON object: the session of each run, the number of tool calls that were made, and the
growth of the process's largest resident memory, in bytes. FOLDER holds the artifacts.
"""

import hashlib
import json
import resource
import sys
from itertools import count
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from sessionary.producers import Limits, ProducerSettings, Run, Session, SessionClient, tool
from sessionary.producers.artifacts import ArtifactLibrary

_FLUSH_S = 300.0
_CHUNK_BYTES = 1 << 20
_LIMITS = Limits(idle_ms=7_200_000, attached_run_ms=7_200_000)  # a busy machine may need more than an hour


def body_of(number: int, megabytes: int) -> bytes:
    """Return the body of a run's artifact."""
    return hashlib.sha256(f"{number}".encode()).digest() * (megabytes * _CHUNK_BYTES // 32)


class ManyRuns:
    """The runs of one client."""

    def __init__(self, client: SessionClient, library: ArtifactLibrary, megabytes: int) -> None:
        self._client, self._library, self._megabytes = client, library, megabytes
        self._one_body = Lock()  # Bodies are the program's own memory: one at a time
        self._made = count()
        self.sessions: dict[int, str] = {}
        self.failures: list[BaseException] = []

    @property
    def calls(self) -> int:
        """How many tool calls were made; can be asked once."""
        return next(self._made)

    def work(self, number: int, steps: int, calls: int) -> None:
        """Carry out one run to its end."""
        try:
            with self._client.session(user_id=f"u{number}", limits=_LIMITS) as session:
                self.sessions[number] = session.session_id
                with session.run("load", run_id="r", input={"number": number}) as run:
                    for step in range(steps):
                        run.step(f"step-{step}", self._do_step, step, calls)
                    run.result = run.step("save", self._save, session, run, number)
        except BaseException as error:
            self.failures.append(error)
            raise

    def _do_step(self, step: int, calls: int) -> list[Any]:
        @tool(name="look", effect="read", deadline=300)
        def look(step: int, call: int) -> list[int]:
            next(self._made)
            return [step, call]

        return [look(step, call) for call in range(calls)]

    def _save(self, session: Session, run: Run, number: int) -> str:
        with self._one_body:
            body = body_of(number, self._megabytes)
            return str(self._library.save(session, body, "file_ref", run_id=run.run_id).reference)


def _max_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(folder: Path, runs: int, steps: int, calls: int, megabytes: int) -> int:
    """Carry out the runs, print what came of them, and return the exit code."""
    with SessionClient(
        tenant_id="acme", service_id="billing", agent_id="many", settings=ProducerSettings.from_env()
    ) as client:
        work = ManyRuns(client, ArtifactLibrary(folder), megabytes)
        work.work(0, steps, calls)
        before = _max_rss_bytes()
        threads = [Thread(target=work.work, args=(number, steps, calls)) for number in range(1, runs + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grown = _max_rss_bytes() - before
        left = client.flush(_FLUSH_S)
    figures = {"sessions": work.sessions, "calls": work.calls, "grown_bytes": grown}
    sys.stdout.write(json.dumps(figures) + "\n")
    return 1 if left or work.failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
