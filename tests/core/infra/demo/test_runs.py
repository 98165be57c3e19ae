import gzip
import json
from pathlib import Path

import pytest

from sessionary.infra.demo.runs import ModelCall, ToolCall, parse_run, read_runs, sample_runs
from sessionary.schemas.errors import Invalid

LINE = json.dumps(
    {
        "run": "task-000/1",
        "task": "task-000",
        "duration_s": 12.5,
        "start_offset_s": 3,
        "events": [[0, "start"], [4, "tool", "search", False], [2.5, "llm", 593, 266]],
    }
)


def test_a_line_becomes_a_run_with_its_steps_in_order_of_time() -> None:
    run = parse_run(LINE)
    assert (run.name, run.task, run.duration_s, run.start_offset_s) == ("task-000/1", "task-000", 12.5, 3.0)
    assert run.steps == (ModelCall(2.5, 593, 266), ToolCall(4.0, "search", succeeded=False))


@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_may_be_zipped_or_not(tmp_path: Path, *, zipped: bool) -> None:
    text = f"{LINE}\n\n{LINE}\n".encode()
    path = tmp_path / "runs"
    path.write_bytes(gzip.compress(text) if zipped else text)
    assert read_runs(path) == [parse_run(LINE)] * 2
    assert read_runs(path, 1) == [parse_run(LINE)]


@pytest.mark.parametrize(
    "line",
    ["nonsense", "{}", LINE.replace('"start"', '"dance"'), LINE.replace("593", '"593"'), LINE.replace("12.5", "null")],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "runs"
    path.write_text(f"{LINE}\n{line}\n")
    with pytest.raises(Invalid, match="line 2"):
        read_runs(path)


def test_a_file_without_runs_and_a_torn_archive_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    path.write_text("\n")
    with pytest.raises(Invalid, match="no runs"):
        read_runs(path)
    path.write_bytes(gzip.compress(LINE.encode())[:-12])
    with pytest.raises(Invalid, match="runs"):
        read_runs(path)


def test_the_sample_holds_sixty_short_runs_and_begins_again() -> None:
    sample = sample_runs(60)
    assert len({run.name for run in sample}) == 60
    assert all(run.duration_s <= 180 and run.steps for run in sample)
    assert sample_runs(62)[60:] == sample[:2]
