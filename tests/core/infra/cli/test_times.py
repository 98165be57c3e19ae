"""Every command that takes a time takes how long ago, a date, and a full time."""

from collections.abc import Iterator, Sequence

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.command_tree import ROOT, LateCommand, LateGroup, load_command
from sessionary.infra.cli.times import TIMES

_NAMES = {"--after", "--at", "--before", "--from", "--since", "--time", "--to", "--until"}
# Each option that takes a time, after what else its command needs. A point is a time too.
_LINES = [
    ["session", "list", "--since"],
    ["session", "timeline", "abc", "--since"],
    ["session", "at", "abc", "--time"],
    ["session", "diff", "abc", "offset:1", "time:"],
    ["session", "diff", "abc", "time:", "offset:1"],
    ["run", "list", "--since"],
    ["call", "unknown", "--since"],
    ["rejected", "list", "--since"],
    ["integrity", "check", "--from"],
    ["integrity", "check", "--to"],
    ["integrity", "repair", "--from"],
    ["integrity", "repair", "--from", "2026-01-01", "--to"],
]


def _options(late: Sequence[LateCommand | LateGroup], before: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield command, name and help of every option of the tree."""
    for each in late:
        words = (*before, each.name)
        if isinstance(each, LateGroup):
            yield from _options(each.commands, words)
            continue
        for parameter in load_command(each).params:
            yield from ((" ".join(words), name, f"{getattr(parameter, 'help', '')}") for name in parameter.opts)


def test_every_option_that_takes_a_time_is_tried_here_and_says_what_it_takes() -> None:
    found = {(command, name): said for command, name, said in _options(ROOT) if name in _NAMES or TIMES in said}
    tried = {(" ".join(words[:2]), word) for words in _LINES for word in words if word.startswith("--")}
    # `session move --to` names a service, `partition skip --to` an offset.
    assert {each for each in found if not any(word in found[each].lower() for word in ("service", "offset"))} == tried
    assert all(TIMES in found[each] or "as --from" in found[each] for each in tried)


@pytest.mark.parametrize("words", _LINES, ids=" ".join)
def test_a_time_is_taken_in_each_form_and_another_text_is_refused_before_a_server_is_asked(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.infra.topics._REACH_S", 0.05)

    def run_with(text: str) -> int:
        in_place = [f"{word}{text}" if word == "time:" else word for word in words]
        return run([*in_place, text] if in_place == words else in_place)

    for text in ("2h", "2026-11-30", "2026-11-30T10:00:00+02:00"):
        assert run_with(text) in (2, 3)  # no server is there, and no token
        assert TIMES not in capfd.readouterr().err
    for text in ("yesterday", "2x", "2026-13-01", "-2h"):
        assert run_with(text) == 5
        assert f"{text}: give {TIMES}" in capfd.readouterr().err
