"""`sessionary demo --migration`, from nothing."""

import json
import subprocess
from pathlib import Path

from tests.integration.pipeline_rig import COMMAND


def test_the_demo_moves_a_session_through_three_services_and_tells_its_trail(tmp_path: Path) -> None:
    argv = [COMMAND, "demo", "--migration", "--data", str(tmp_path / "stack"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["owned_by"], found["handovers_made"]) == (["research", "payments", "shipping"], 2)
    turns = [(owner["epoch"], owner["service_id"], owner["how"]) for owner in found["owners"]]
    assert turns[:4] == [
        (1, "research", "created"),
        (2, "research", "resumed"),
        (3, "payments", "migrated"),
        (4, "shipping", "taken_over"),
    ]
    assert (found["epochs_with_two_owners"], found["stale_events_accepted"], found["integrity"]) == (0, 0, [])
    assert [(wait["answer"], wait["answered_by"]) for wait in found["waits"]] == [("approved", "operator")]
    (moved,) = found["migrations"]
    assert (moved["from_service"], moved["to_service"], moved["step"]) == ("research", "payments", "completed")
    assert moved["silence_ms"] > 0
    assert moved["released_at"] is not None
    assert [(task["agent_id"], task["service_id"], task["times_done"]) for task in found["tasks"]] == [
        ("researcher_1", "research", 1),
        ("analyzer_1", "payments", 1),
        ("writer_1", "shipping", 1),
    ]
    assert [(each["from_agent_id"], each["to_agent_id"]) for each in found["handovers"]] == [
        ("researcher_1", "analyzer_1"),
        ("analyzer_1", "writer_1"),
    ]
    accepted = [(line["service"], line["event"]) for line in found["trail"] if not line["rejection"]]
    steps = [
        ("research", "session_created"),
        ("research", "session_paused"),
        ("control-api", "session_resumed"),
        ("research", "session_migration_offered"),
        ("payments", "session_migration_loaded"),
        ("processor", "session_migration_prepared"),
        ("payments", "session_migration_accepted"),
        ("processor", "session_migration_completed"),
        ("shipping", "session_taken_over"),
        ("shipping", "session_terminated"),
    ]
    assert [line for line in accepted if line in steps] == steps
    assert "killed: payments, the owner, by SIGKILL" in done.stderr
