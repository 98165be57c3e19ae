"""A program that updates sessions at a fixed rate, and notes when followers have each update.

    python -m benchmarks.programs.following --rate 200 --seconds 20 --warm-up-s 5 --sessions 50 \\
        --followers 3 --out FILE

Each follower is another process, which this program starts with the ids of the sessions; it follows
all of them. Each update has the time of its call in the content, so all need the same clock: they
share the machine. Changes that a follower received as a part of a later one are `skipped`. The
first `--warm-up-s` are left out.

It writes a line `sent_ns reported_ns` to FILE for each update that counts and each follower, and
prints one line of JSON: `reported`, the number of these lines, `skipped`, and `late_ms`, by which
an update began late at most. Exit code 1: a version fell.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sessionary.producers import ProducerSettings, Session, SessionClient

_FOLLOW = "follow"
_END_S = 60.0


def _open_client(agent_id: str, spool: str) -> SessionClient:
    settings = ProducerSettings.from_env(spool_dir=Path(spool))
    return SessionClient(tenant_id="acme", service_id="billing", agent_id=agent_id, settings=settings)


def _follow(client: SessionClient, session_id: str, reported: list[tuple[int, int]], falls: list[str]) -> None:
    version = 0
    with client.follow(session_id) as states:
        for view in states:
            now_ns = time.time_ns()
            if view.version < version:
                falls.append(session_id)
            if view.version > version and (sent_ns := json.loads(view.state_json).get("sent_ns")):
                reported.append((sent_ns, now_ns))
            version = view.version
            if version == 1:
                sys.stdout.write("following\n")
                sys.stdout.flush()
            if view.state == "Terminated":
                return


def follow_sessions(session_ids: list[str], spool: str) -> int:
    """Follow sessions until they end; print when each update was sent and reported. Return the
    code.
    """
    reported: list[tuple[int, int]] = []
    falls: list[str] = []
    with _open_client("reader", spool) as client:
        threads = [threading.Thread(target=_follow, args=(client, one, reported, falls)) for one in session_ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.stdout.write(json.dumps(reported) + "\n")
    return 1 if falls else 0


def _start_reader(sessions: Sequence[Session], spool: str) -> "subprocess.Popen[str]":
    """Start a follower, and wait until it has each session's first state."""
    words = [sys.executable, "-m", "benchmarks.programs.following", _FOLLOW, spool]
    reader = subprocess.Popen([*words, *(each.session_id for each in sessions)], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    for _ in sessions:
        if not reader.stdout.readline():
            raise RuntimeError("a follower failed")
    return reader


def make_updates(held: Sequence[Session], rate: float, updates: int) -> float:
    """Update the sessions in turn, and end them; return how late an update was at most, s."""
    late_s, began_s = 0.0, time.monotonic()
    for n in range(updates):
        while (left_s := began_s + n / rate - time.monotonic()) > 0:
            time.sleep(left_s)
        late_s = max(late_s, -left_s)
        held[n % len(held)].update_state({"sent_ns": time.time_ns()})
    for session in held:
        session.close()
    return late_s


def _read_reported(reader: "subprocess.Popen[str]") -> list[list[int]]:
    """Return the updates that a follower received, once it has ended. Raises `RuntimeError`."""
    out, _ = reader.communicate(timeout=_END_S)
    if reader.returncode:
        raise RuntimeError("a version fell, or a follower failed")
    reported: list[list[int]] = json.loads(out.splitlines()[-1])
    return reported


def main() -> int:
    """Measure, print, and return the exit code."""
    if sys.argv[1:2] == [_FOLLOW]:
        return follow_sessions(sys.argv[3:], sys.argv[2])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.following")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-s", type=float, required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--followers", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    updates = round(given.rate * given.seconds)
    with ExitStack() as ends:
        spool = ends.enter_context(tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-"))
        client = ends.enter_context(_open_client("writer", f"{spool}/writer"))
        held = [client.session(user_id=f"u{n}", state={"sent_ns": 0}) for n in range(given.sessions)]
        for session in held:
            session.sync()
        readers = []
        for number in range(given.followers):
            readers.append(ends.enter_context(_start_reader(held, f"{spool}/reader-{number}")))
            ends.callback(readers[-1].kill)
        counts_from_ns = time.time_ns() + given.warm_up_s * 1e9
        late_s = make_updates(held, given.rate, updates)
        reported = [_read_reported(reader) for reader in readers]
    lines = [f"{sent} {at}\n" for each in reported for sent, at in each if sent >= counts_from_ns]
    given.out.write_text("".join(lines))
    skipped = sum(updates - len(each) for each in reported)
    sys.stdout.write(json.dumps({"reported": len(lines), "skipped": skipped, "late_ms": late_s * 1e3}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
