"""What is told about the processes of a local stack that end."""

from datetime import UTC, datetime

import pytest

from sessionary.infra.cli.errors import SET_UP, USAGE
from sessionary.infra.cli.part_reports import PartReports
from sessionary.infra.local.schedule import PartState
from sessionary.infra.local.supervisor import PartChange
from sessionary.infra.stack import SET_UP_CODES

AT = datetime(2026, 11, 25, 7, 5, 9, tzinfo=UTC)


def ended(code: int, missing: str | None = None) -> PartChange:
    return PartChange("sink-audit", PartState.WAITING, 17, code, 0.2, missing)


def test_each_crash_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    reports = PartReports(lambda: AT)
    for _ in range(3):
        reports.report_change(ended(-9))
    told = "2026-11-25T07:05:09Z sink-audit ended with code -9; restarting it in 0.2 s"
    assert capsys.readouterr().err.splitlines() == [told] * 3


def test_what_must_be_set_up_is_told_once_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    reports = PartReports(lambda: AT)
    told = '{"time": "%d", "level": "critical", "role": "sink", "event": "the role ends: no table"}'
    in_text = "%d CRITICAL sink the role ends: no right"
    for missing in (told % 1, told % 2, in_text % 3, in_text % 4):
        reports.report_change(ended(6, missing))
        reports.report_change(PartChange("sink-audit", PartState.STARTING, 18))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("2026-11-25T07:05:09Z sink-audit ended with code 6: no table; ")
    assert second.startswith("2026-11-25T07:05:09Z sink-audit ended with code 6: no right; ")


def test_a_part_that_works_at_last_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    reports = PartReports(lambda: AT)
    ready = PartChange("processor", PartState.READY, 18)
    reports.report_change(ready)
    reports.report_change(PartChange("processor", PartState.WAITING, 17, 2, 0.2, "no setting"))
    reports.report_change(ready)
    reports.report_change(ready)
    _, told = capsys.readouterr().err.splitlines()
    assert told == "2026-11-25T07:05:09Z processor is ready now"


def test_the_stack_knows_the_exit_codes_of_commands() -> None:
    assert set(SET_UP_CODES) == {USAGE, SET_UP}
