"""A program that updates sessions at a fixed rate, and measures when a follower has each update.

    python -m benchmarks.programs.following --rate 100 --seconds 20 --warm-up-s 5 --sessions 50

The follower is another process, which this program starts with the ids of the sessions. Each
update has the time of its call in the content, so both need the same clock: they share the machine.
Changes that a follower was told as part of a later one are `skipped`. The first `--warm-up-s` are
left out.

It prints one line of JSON: p50, p95, p99 and the largest latency in ms, the updates that were told,
`skipped`, and `late_ms`, by which an update began late at most. Exit code 1: a version fell.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.results import quantile
from sessionary.producers import ProducerSettings, SessionClient

_FOLLOW = "follow"
_END_S = 60.0


def _open_client(agent_id: str, spool: str) -> SessionClient:
    settings = ProducerSettings.from_env(spool_dir=Path(spool))
    return SessionClient(tenant_id="acme", service_id="billing", agent_id=agent_id, settings=settings)


def _follow(client: SessionClient, session_id: str, told: list[tuple[int, int]], falls: list[str]) -> None:
    version = 0
    with client.follow(session_id) as states:
        for view in states:
            now_ns = time.time_ns()
            if view.version < version:
                falls.append(session_id)
            if view.version > version and (sent_ns := json.loads(view.state_json).get("sent_ns")):
                told.append((sent_ns, now_ns))
            version = view.version
            if version == 1:
                sys.stdout.write("following\n")
                sys.stdout.flush()
            if view.state == "Terminated":
                return


def follow_sessions(session_ids: list[str], spool: str) -> int:
    """Follow sessions until they end; print when each update was sent and told. Return the code."""
    told: list[tuple[int, int]] = []
    falls: list[str] = []
    with _open_client("reader", spool) as client:
        threads = [threading.Thread(target=_follow, args=(client, one, told, falls)) for one in session_ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if falls else 0


def make_updates(spool: str, rate: float, seconds: float, warm_up_s: float, sessions: int) -> dict[str, float]:
    """Update the sessions in turn, and return the figures. Raises `RuntimeError`."""
    late_s, updates = 0.0, round(rate * seconds)
    with _open_client("writer", f"{spool}/writer") as client:
        held = [client.session(user_id=f"u{n}", state={"sent_ns": 0}) for n in range(sessions)]
        for session in held:
            session.sync()
        words = [sys.executable, "-m", "benchmarks.programs.following", _FOLLOW, f"{spool}/reader"]
        ids = [session.session_id for session in held]
        with subprocess.Popen([*words, *ids], stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            for _ in held:
                reader.stdout.readline()
            began_s, began_ns = time.monotonic(), time.time_ns()
            for n in range(updates):
                while (left_s := began_s + n / rate - time.monotonic()) > 0:
                    time.sleep(left_s)
                late_s = max(late_s, -left_s)
                held[n % sessions].update_state({"sent_ns": time.time_ns()})
            for session in held:
                session.close()
            out, _ = reader.communicate(timeout=_END_S)
            if reader.returncode:
                raise RuntimeError("a version fell, or the follower failed")
    told = json.loads(out.splitlines()[-1])
    counted = sorted((at - sent) / 1e6 for sent, at in told if sent >= began_ns + warm_up_s * 1e9)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        **{name: quantile(counted, share) for name, share in shares.items()},
        "max": counted[-1],
        "told": len(counted),
        "skipped": updates - len(told),
        "late_ms": late_s * 1e3,
    }


def main() -> int:
    """Measure, print, and return the exit code."""
    if sys.argv[1:2] == [_FOLLOW]:
        return follow_sessions(sys.argv[3:], sys.argv[2])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.following")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-s", type=float, required=True)
    parser.add_argument("--sessions", type=int, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool:
        figures = make_updates(spool, given.rate, given.seconds, given.warm_up_s, given.sessions)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
