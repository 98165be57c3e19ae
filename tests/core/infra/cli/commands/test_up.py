"""What `sessionary up` says about its parts, and how a role says why it ends."""

import json
import os
import re
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sessionary.infra.cli.commands.up import PartReports
from sessionary.infra.cli.errors import SET_UP, USAGE
from sessionary.infra.local.schedule import PartState
from sessionary.infra.local.supervisor import PartChange
from sessionary.infra.stack import SET_UP_CODES

_REPORT = """
import sys
from pathlib import Path
from sessionary.infra.cli.commands.up import change_reporter
from sessionary.infra.local.schedule import PartState
from sessionary.infra.local.supervisor import PartChange
folder = Path(sys.argv[1])
folder.mkdir()
report = change_reporter(folder)
for part in ("broker", "processor"):
    report(PartChange(part, PartState.READY, pid=7))
report(PartChange("processor", PartState.WAITING, 7, 9, 0.5))
"""
_ENDED = "processor ended with code 9"


def run_python(*argv: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SESSIONARY_")}
    return subprocess.run(
        [sys.executable, *argv], env=clean | environ, capture_output=True, text=True, timeout=300, check=False
    )


def test_changes_of_parts_have_times_in_the_log_and_people_see_what_ended(tmp_path: Path) -> None:
    done = run_python("-c", _REPORT, str(tmp_path / "logs"))
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT[\d:]{{8}}Z {_ENDED}; restarting it in 0.5 s\n", done.stderr)
    lines = (tmp_path / "logs" / "supervisor.log").read_text().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\dT[\d:.]{12}Z ", "", line) for line in lines] == [
        "INFO supervisor broker is ready pid=7",
        "INFO supervisor processor is ready pid=7",
        f"WARNING supervisor {_ENDED}; it is restarted in 0.5 s pid=7",
    ]


def test_changes_of_parts_are_json_lines_on_stderr_if_the_setting_says_so(tmp_path: Path) -> None:
    done = run_python("-c", _REPORT, str(tmp_path / "logs"), SESSIONARY_LOG_FORMAT="json")
    *_, ended = [json.loads(line) for line in done.stderr.splitlines()]
    assert (ended["role"], ended["part"], ended["exit_code"], ended["wait_s"]) == ("supervisor", "processor", 9, 0.5)
    assert not (tmp_path / "logs" / "supervisor.log").exists()


def test_a_role_says_in_its_log_why_it_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        done = run_python("-m", "sessionary.infra.cli", "serve", "clickhouse", "--port", port, "--data", str(tmp_path))
    [line] = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, line["level"], line["role"]) == (6, "critical", "clickhouse")
    assert line["event"].startswith("the role ends: ")
    assert port in line["event"]


AT = datetime(2026, 11, 25, 7, 5, 9, tzinfo=UTC)


def ended(code: int, missing: str | None = None) -> PartChange:
    return PartChange("sink-audit", PartState.WAITING, 17, code, 0.2, missing)


def test_each_crash_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    reports = PartReports(lambda: AT)
    for _ in range(3):
        reports.report_change(ended(-9))
    reported = "2026-11-25T07:05:09Z sink-audit ended with code -9; restarting it in 0.2 s"
    assert capsys.readouterr().err.splitlines() == [reported] * 3


def test_what_must_be_set_up_is_reported_once_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    reports = PartReports(lambda: AT)
    reported = '{"time": "%d", "level": "critical", "role": "sink", "event": "the role ends: no table"}'
    in_text = "%d CRITICAL sink the role ends: no right"
    for missing in (reported % 1, reported % 2, in_text % 3, in_text % 4):
        reports.report_change(ended(6, missing))
        reports.report_change(PartChange("sink-audit", PartState.STARTING, 18))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("2026-11-25T07:05:09Z sink-audit ended with code 6: no table; ")
    assert second.startswith("2026-11-25T07:05:09Z sink-audit ended with code 6: no right; ")


def test_a_part_that_works_at_last_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    reports = PartReports(lambda: AT)
    ready = PartChange("processor", PartState.READY, 18)
    reports.report_change(ready)
    reports.report_change(PartChange("processor", PartState.WAITING, 17, 2, 0.2, "no setting"))
    reports.report_change(ready)
    reports.report_change(ready)
    _, reported = capsys.readouterr().err.splitlines()
    assert reported == "2026-11-25T07:05:09Z processor is ready now"


def test_the_stack_knows_the_exit_codes_of_commands() -> None:
    assert set(SET_UP_CODES) == {USAGE, SET_UP}
