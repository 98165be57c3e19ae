"""`sessionary demo --workflow`, from nothing."""

import json
import subprocess
from pathlib import Path

from tests.integration.pipeline_rig import COMMAND


def test_the_demo_kills_a_workflow_and_goes_on_without_a_second_message(tmp_path: Path) -> None:
    argv = [COMMAND, "demo", "--workflow", "--data", str(tmp_path / "stack"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["messages_sent"], figures["requests_to_send"], figures["run"]) == (1, 1, "completed")
    made = {step["step"]: (step["first_process"], step["second_process"]) for step in figures["steps"]}
    done_before = ("done", "skipped")
    assert made == {"fetch_issue": done_before, "search_kb": done_before, "notify_team": ("killed in it", "done")}
    assert [step["why"] for step in figures["steps"]][:2] == ["succeeded in attempt 1: its stored output is used"] * 2
    assert figures["calls"][-1]["resolved_by"] == "query of send_message"
    assert "killed: SIGKILL" in done.stderr
    assert (tmp_path / "stack" / "broker").is_dir()
