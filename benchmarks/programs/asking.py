"""A program that asks the control API for the status of runs and of tasks at a fixed rate.

    python -m benchmarks.programs.asking --rate 500 --seconds 20 --warm-up-s 5

It first makes sessions, each with an open run that has steps and calls, and with a task that no
worker has taken. Then it asks for a run and for a task in turn, over kept connections, as a service
beside the processor would. A request is due at a fixed time; `late_ms` is how late the latest
began. Latency is from the request to the last byte of its answer.

It prints one line of JSON: p50, p95, p99 and the largest latency in ms, of runs and of tasks, the
number of requests, and `late_ms`. It fails if an answer is not 200.
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.results import quantile
from sessionary.producers import ProducerSettings, SessionClient, tool

_SESSIONS = 20
_STEPS = 5
_CONNECTIONS = 8
_TIMEOUT_S = 30.0


@tool(effect="read", deadline=60)
def _look(number: int) -> int:
    return number


class _Asker(threading.Thread):
    """Asks for every `_CONNECTIONS`-th answer over one connection."""

    def __init__(self, settings: ProducerSettings, paths: Sequence[str], due_s: Sequence[float]) -> None:
        super().__init__(daemon=True)
        assert settings.control_url is not None
        assert settings.api_token is not None
        self._address = urlsplit(settings.control_url)
        self._headers = {"Authorization": f"Bearer {settings.api_token.get_secret_value()}"}
        self._paths = paths
        self._due_s = due_s
        self.made: list[tuple[float, str, float]] = []  # when it was due, s; path; latency, ms
        self.late_s = 0.0
        self.failure: Exception | None = None

    def run(self) -> None:
        """Ask."""
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=_TIMEOUT_S)
        try:
            for path, due_s in zip(self._paths, self._due_s, strict=True):
                self._ask_at(connection, path, due_s)
        except Exception as error:  # noqa: BLE001 - the main thread tells of it
            self.failure = error
        finally:
            connection.close()

    def _ask_at(self, connection: http.client.HTTPConnection, path: str, due_s: float) -> None:
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)
        self.late_s = max(self.late_s, -left_s)
        begun_ns = time.perf_counter_ns()
        connection.request("GET", path, headers=self._headers)
        answer = connection.getresponse()
        body = answer.read()
        self.made.append((due_s, path, (time.perf_counter_ns() - begun_ns) / 1e6))
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:500]!r}")


def ask_status(
    settings: ProducerSettings, paths: Sequence[str], rate: float, seconds: float, warm_up_s: float
) -> dict[str, float]:
    """Ask for the paths in turn, and return the figures. Raises `RuntimeError`."""
    began_s, requests = time.monotonic() + 0.5, round(rate * seconds)
    askers = []
    for first in range(_CONNECTIONS):
        numbers = range(first, requests, _CONNECTIONS)
        # Each path is asked for over every connection.
        own = [paths[(n + n // _CONNECTIONS) % len(paths)] for n in numbers]
        askers.append(_Asker(settings, own, [began_s + n / rate for n in numbers]))
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    for asker in askers:
        if asker.failure is not None:
            raise asker.failure
    counted = [(path, ms) for asker in askers for due_s, path, ms in asker.made if due_s >= began_s + warm_up_s]
    figures: dict[str, float] = {}
    for kind in ("runs", "tasks"):
        found = sorted(ms for path, ms in counted if f"/{kind}/" in path)
        figures |= {f"{kind}_p{round(share * 100)}": quantile(found, share) for share in (0.5, 0.95, 0.99)}
        figures[f"{kind}_max"] = found[-1]
    return {**figures, "requests": len(counted), "late_ms": max(asker.late_s for asker in askers) * 1e3}


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.asking")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-s", type=float, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool, ExitStack() as runs:
        settings = ProducerSettings.from_env(spool_dir=Path(spool))
        client = runs.enter_context(
            SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1", settings=settings)
        )
        paths = []
        for number in range(_SESSIONS):
            session = client.session(user_id=f"u{number}")
            run = runs.enter_context(session.run("watched", mode="detached"))
            for n in range(_STEPS):
                run.step(f"step-{n}", _look, n)
            task_id = session.start_task("waiting", timeout_s=_TIMEOUT_S)
            assert client.find_task(task_id) is not None
            paths += [f"/v1/sessions/{session.session_id}/runs/{run.run_id}", f"/v1/tasks/{task_id}"]
        figures = ask_status(settings, paths, given.rate, given.seconds, given.warm_up_s)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
