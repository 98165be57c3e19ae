"""(n) Instructions of an agent's event, counted by callgrind: with snapshots, and without.

`programs/turns_of_tree` runs with few turns and with many; the difference is that of the turns
between, without the start. Only the agent's thread counts. `emit` is compared with the client of
the commit before sessions had snapshots.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.harness.stack import running_stack
from benchmarks.machine import ROOT
from benchmarks.measurements.base_commit import check_tree, tree_path, unpack_commit
from benchmarks.results import Result, Target

BEFORE_SNAPSHOTS = "24844e2b15fb"
TURNS: dict[str, tuple[int, int]] = {"emit": (100, 600), "turns": (40, 140)}
TURNS_QUICK = (2, 4)
OFF_RATIO_MAX, ON_RATIO_MAX = 1.03, 1.25
_TIMEOUT_S = 600.0
_COUNTED = ("valgrind", "--tool=callgrind", "--separate-threads=yes")
_PROGRAM = ROOT / "benchmarks" / "programs" / "turns_of_tree.py"


def count_instructions(folder: Path, tree: Path, *words: str) -> tuple[int, int]:
    """Run the program in a tree; return events and instructions of its first thread.

    `folder` is for what the run leaves. Raises `RuntimeError`.
    """
    out = folder / f"callgrind-{tree.name}-{'-'.join(words)}"
    done = subprocess.run(
        [*_COUNTED, f"--callgrind-out-file={out}", sys.executable, str(_PROGRAM), *words],
        env={**os.environ, "PYTHONPATH": tree_path(tree), "PYTHONHASHSEED": "0", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"callgrind ended with {done.returncode}:\n{done.stderr[-2_000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    check_tree(figures, "client", tree)
    first_thread = out.with_name(f"{out.name}-01")
    totals = next(line for line in first_thread.read_text().splitlines() if line.startswith("totals:"))
    return figures["events"], int(totals.split()[1])


def run(bench: Bench) -> list[Result]:
    """Count once: a count differs by less than 1 % between runs."""
    if shutil.which("valgrind") is None:
        raise RuntimeError("there is no valgrind: install it, for example by apt-get install valgrind")
    with running_stack(bench, with_broker=False) as stack:
        base = stack.folder / "base"
        short = unpack_commit(BEFORE_SNAPSHOTS, base)

        def count(way: str, snapshots: str, tree: Path) -> tuple[float, float]:
            """Return instructions per event, and per turn."""
            few, many = TURNS_QUICK if bench.options.quick else TURNS[way]
            # The first run of a tree also compiles its modules, which takes more than the turns.
            count_instructions(stack.folder, tree, way, f"{TURNS_QUICK[0]}", snapshots)
            (events, least), (more, most) = (
                bench.run_once(
                    f"{way}, snapshots {snapshots}, {tree.name}, {turns} turns",
                    lambda turns=turns: count_instructions(stack.folder, tree, way, str(turns), snapshots),  # type: ignore[misc]
                )
                for turns in (few, many)
            )
            return (most - least) / (more - events), (most - least) / (many - few)

        theirs, off, on = (
            count("emit", snapshots, tree) for snapshots, tree in (("off", base), ("off", ROOT), ("on", ROOT))
        )
        turn_off, turn_on = (count("turns", snapshots, ROOT) for snapshots in ("off", "on"))
    notes = (
        f"beside {short}, the commit before sessions had snapshots; five verbs in turn in one session, with the spool",
        "a turn: eight events, two of them of a recorded tool call, and with snapshots two more; client and judge",
    )
    return [
        Result("emit, snapshots off: ours / theirs", "ratio", [off[0] / theirs[0]], Target("<=", OFF_RATIO_MAX), notes),
        Result("emit, snapshots on / off", "ratio", [on[0] / off[0]], Target("<=", ON_RATIO_MAX)),
        Result("event of a turn, snapshots on / off", "ratio", [turn_on[0] / turn_off[0]]),
        Result("a whole turn, snapshots on / off", "ratio", [turn_on[1] / turn_off[1]]),
        Result("emit, snapshots off, ours", "instructions", [off[0]]),
        Result("event of a turn, snapshots off", "instructions", [turn_off[0]]),
    ]
