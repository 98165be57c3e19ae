"""The command line of the benchmarks."""

import pytest

from benchmarks.bench import parse_options
from benchmarks.measurements import MEASUREMENTS


def test_the_command_line_knows_its_parts() -> None:
    options, wanted = parse_options(["--only", "b,c", "--quick"], ["a", "b", "c"])
    assert (options.quick, wanted) == (True, ["b", "c"])
    with pytest.raises(SystemExit):
        parse_options(["--only", "z"], ["a", "b"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runs", "0"], "--runs is at least 1"),
        (["--events", "0"], "--events is at least 1"),
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
