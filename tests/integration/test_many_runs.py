"""Fifty runs side by side, each of 50 steps with tool calls, and with an artifact of 20 MB.

A step makes five calls; with `MANY_RUNS_CALLS=1` one, which is quicker: make soak PART=load.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers.artifacts import ArtifactLibrary
from sessionary.producers.artifacts.library import ArtifactReference
from sessionary.schemas.ids import SessionKey, run_key
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, TOKEN, PipelineRig
from tests.support.many_runs import body_of
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.reading import read_topic

pytestmark = pytest.mark.timeout(3_000)

RUNS, STEPS, MEGABYTES = 50, 50, 20
CALLS = int(os.environ.get("MANY_RUNS_CALLS", "5"))
# In the changelog, a row with its key and without content; stores keep about half of that.
ROW_BYTES_MAX = 400
SESSION_BYTES_MAX = 4 << 10
# By 50 sessions, runs and threads at once, and by the body that the program holds.
GROWTH_BYTES_MAX = 160 << 20
# Else glibc keeps a body that was freed in the arena of each thread.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
TIMEOUT_S = 4 * (240 + 60 * CALLS)  # four times what a machine with little else to do needs
CONTENT = b"\x00content"


def changelog_rows(kafka: KafkaSettings) -> dict[bytes, bytes]:
    """Return the last value of each key of the changelog, without rows that vanished."""
    rows = {record.key or b"": record.value for record in read_topic(kafka, kafka.topics.changelog)}
    return {key: value for key, value in rows.items() if value is not None}


def bytes_of(rows: dict[bytes, bytes], prefix: bytes) -> int:
    """Return the bytes of all rows of a run or session, with their keys and without contents."""
    return sum(
        len(key) + len(value) for key, value in rows.items() if key.startswith(prefix) and not key.endswith(CONTENT)
    )


def test_runs_with_large_artifacts_side_by_side_all_finish_within_bounds(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    pipeline.start_processor()
    own = {"control_url": pipeline.control_url, "api_token": TOKEN, "spool_dir": str(tmp_path / "spool")}
    numbers = map(str, (RUNS, STEPS, CALLS, MEGABYTES))
    program = processes.run(
        [sys.executable, "-m", "tests.support.many_runs", str(tmp_path / "artifacts"), *numbers],
        env={**environment(kafka, **own, verdict_timeout_s="600"), **MALLOC},
        name="many-runs",
    )
    assert program.wait(TIMEOUT_S)
    assert program.exit_code == 0
    reported: dict[str, Any] = json.loads(program.log.read_text().splitlines()[-1])
    assert reported["calls"] == (RUNS + 1) * STEPS * CALLS
    assert reported["grown_bytes"] <= GROWTH_BYTES_MAX

    rows = changelog_rows(kafka)
    library = ArtifactLibrary(tmp_path / "artifacts")
    for number, session_id in reported["sessions"].items():
        key = SessionKey(TENANT, session_id)
        run = pipeline.ask(f"{session_id}/runs/r")
        assert run["state"] == "completed"
        reference = ArtifactReference.parse(json.loads(run["result_json"]))
        # Loading compares the body with its hash.
        assert library.load(reference) == body_of(int(number), MEGABYTES)
        (artifact,) = pipeline.ask(f"{session_id}/runs/r/artifacts")["artifacts"]
        assert (artifact["state"], artifact["sha256"], artifact["size_bytes"]) == (
            *("complete", reference.sha256),
            MEGABYTES << 20,
        )
        own_rows = 1 + STEPS * (1 + CALLS) + 2  # The run, steps and calls; the step that saves, and the artifact
        assert 0 < bytes_of(rows, run_key(*key, "r")) <= own_rows * ROW_BYTES_MAX
        assert 0 < len(rows[key.encoded()]) <= SESSION_BYTES_MAX
