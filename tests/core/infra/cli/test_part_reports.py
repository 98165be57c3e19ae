"""What is told about the processes of a local stack that end."""

import pytest

from sessionary.infra.cli.errors import SET_UP, USAGE
from sessionary.infra.cli.part_reports import PartReports
from sessionary.infra.local.schedule import PartState
from sessionary.infra.local.supervisor import PartChange
from sessionary.infra.stack import SET_UP_CODES


def ended(code: int, missing: str | None = None) -> PartChange:
    return PartChange("sink-audit", PartState.WAITING, 17, code, 0.2, missing)


def test_each_crash_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    reports = PartReports()
    for _ in range(3):
        reports.report_change(ended(-9))
    told = "sink-audit ended with code -9; restarting it in 0.2 s"
    assert capsys.readouterr().err.splitlines() == [told] * 3


def test_what_must_be_set_up_is_told_once_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    reports = PartReports()
    told = '{"time": "%d", "level": "critical", "role": "sink", "event": "the role ends: no table"}'
    in_text = "%d CRITICAL sink the role ends: no right"
    for missing in (told % 1, told % 2, in_text % 3, in_text % 4):
        reports.report_change(ended(6, missing))
        reports.report_change(PartChange("sink-audit", PartState.STARTING, 18))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("sink-audit ended with code 6: no table; ")
    assert second.startswith("sink-audit ended with code 6: no right; ")


def test_a_part_that_works_at_last_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    reports = PartReports()
    ready = PartChange("processor", PartState.READY, 18)
    reports.report_change(ready)
    reports.report_change(PartChange("processor", PartState.WAITING, 17, 2, 0.2, "no setting"))
    reports.report_change(ready)
    reports.report_change(ready)
    _, told = capsys.readouterr().err.splitlines()
    assert told == "processor is ready now"


def test_the_stack_knows_the_exit_codes_of_commands() -> None:
    assert set(SET_UP_CODES) == {USAGE, SET_UP}
