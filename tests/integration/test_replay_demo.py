"""`sessionary demo --replay`, from nothing."""

import json
import subprocess
from pathlib import Path

from sessionary.infra.demo.replay import BASKETS, SOURCES
from tests.integration.pipeline_rig import COMMAND


def test_the_demo_records_travels_replays_forks_and_compares(tmp_path: Path) -> None:
    argv = [COMMAND, "demo", "--replay", "--data", str(tmp_path / "stack"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    counts = {row["step"]: [*row.values()][2:] for row in found["replays"]}
    # served, missed, blocked, executed; calls that the tools made; replays that reproduced
    assert counts == {
        "record": [0, 0, 0, 0, 27, 0],
        "strict replay": [27, 0, 0, 0, 0, 3],
        "baseline of forks": [54, 0, 0, 0, 0, 6],
        "fork, write blocked": [12, 3, 3, 0, 0, 3],
        "fork, write allowed": [21, 3, 0, 3, 3, 3],
    }
    points = sum(map(len, BASKETS))
    assert [[*row.values()] for row in found["travels"]] == [[source, points, points, points] for source in SOURCES]
    assert [[*row.values()][1:] for row in found["comparisons"]] == [
        [place, "order gear", "ask_person gear", True] for place in (4, 2, 6)
    ]
    assert all(word in done.stderr for word in ("recording", "travelling", "replaying", "forking", "comparing"))
