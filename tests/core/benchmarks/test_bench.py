"""The command line of the benchmarks."""

import pytest

from benchmarks.bench import parse_options
from benchmarks.measurements import MEASUREMENTS


def test_the_command_line_knows_its_parts() -> None:
    options, wanted = parse_options(["--only", "b,c", "--quick"], ["a", "b", "c"])
    assert (options.quick, options.base, wanted) == (True, "HEAD^", ["b", "c"])
    assert parse_options(["--base", "main"], ["v"])[0].base == "main"
    assert parse_options(["--only", "b,base_commit"], ["a", "b"], ["base_commit"])[1] == ["b", "base_commit"]
    with pytest.raises(SystemExit):
        parse_options(["--only", "z"], ["a", "b"])


def test_a_part_of_a_measurement_leaves_its_results_file_alone() -> None:
    for words, writes_file in (([], True), (["--part", "idle"], False), (["--quick"], False)):
        assert parse_options(words, ["p"])[0].writes_file is writes_file


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runs", "0"], "--runs is at least 1"),
        (["--events", "0"], "--events is at least 1"),
        (["--part", "third"], "invalid choice: 'third'"),
        (["--runs-file", "nowhere.ndjson"], "there is no file nowhere.ndjson"),
    ],
)
def test_a_senseless_option_ends_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_options(words, ["a"])
    assert said in capsys.readouterr().err
    assert len({part.name for part in MEASUREMENTS}) == len(MEASUREMENTS)
