"""The tutorial's commands run in order on a real stack and write what the tutorial shows."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.style.project import ROOT
from tests.support.terminal import TerminalCommand
from tests.support.waiting import wait_until

_TUTORIAL = ROOT / "docs" / "learn" / "tutorial.md"
_UP = ".venv/bin/sessionary up"
_ASKS = ".venv/bin/sessionary "  # Such commands change nothing, so that they may be asked again.
_INSTALL_S, _UP_S, _COMMAND_S = 1_200.0, 600.0, 300.0
_VARIABLES = "variables.sh"
# What differs from run to run, and what stands for it in a comparison.
_VARYING = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}(-[0-9a-f]{4}){2}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}\b"), "<id>"),
    (re.compile(r"(\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?"), "<time>"),
    (re.compile(r"(?<![\w.<-])\d+(\.\d+)*(:\d+)?(?![\w>])"), "<number>"),
    (re.compile(r"\s+"), " "),
)


class Block(NamedTuple):
    """A fenced block of the tutorial."""

    language: str
    text: str


def read_blocks(page: str) -> list[Block]:
    """Return the fenced blocks in order."""
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S)]


def comparable_lines(text: str) -> list[str]:
    """Return the lines without what differs from run to run, and without empty ones."""
    for pattern, word in _VARYING:
        text = "\n".join(pattern.sub(word, line).strip() for line in text.splitlines())
    return [line for line in text.splitlines() if line]


def missing_lines(expected: str, output: str) -> list[str]:
    """Return the lines of `expected` that `output` does not have in this order."""
    left = iter(comparable_lines(output))
    return [line for line in comparable_lines(expected) if not any(line == other for other in left)]


class Reader:
    """Does in a folder what the tutorial says."""

    def __init__(self, folder: Path) -> None:
        (folder / ".venv").symlink_to(ROOT / ".venv")
        self._folder = folder
        unwanted = ("SESSIONARY_", "MAKE", "COLUMNS", "LINES", "NO_COLOR")
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        # make takes ARGS from the environment too: a few sessions are enough here.
        self._env |= {"TERM": "xterm", "XDG_STATE_HOME": str(folder / "state"), "ARGS": "--sessions 6"}
        (folder / _VARIABLES).write_text("")
        self.stack: TerminalCommand | None = None

    def save_file(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def start_stack(self) -> TerminalCommand:
        stack = self.stack = TerminalCommand(_UP, self._folder, self._env)
        wait_until(lambda: "Ctrl-C stops the stack" in stack.text or stack.has_ended, _UP_S, "the stack is ready")
        return stack

    def run_block(self, text: str) -> str:
        """Run a block in the second terminal, with the variables that the last one left."""
        script = f"set -a; . ./{_VARIABLES}\n{text}\nexport -p > {_VARIABLES}"
        command = TerminalCommand(script, self._folder, self._env)
        try:
            assert command.wait_end(_COMMAND_S) == 0, command.text
        finally:
            command.end()
        return command.text

    def run_demo(self) -> str:
        """`make demo` in the project's folder, where the reader runs everything."""
        command = TerminalCommand("make demo", ROOT, self._env)
        try:
            assert command.wait_end(_INSTALL_S) == 0, command.text
        finally:
            command.end()
        return command.text


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    if made.stack is not None:
        made.stack.end()


def test_the_tutorial_leads_to_a_timed_out_session(reader: Reader) -> None:
    page = _TUTORIAL.read_text("utf-8")
    names = iter(re.findall(r"^Save this as `([\w.]+)`:$", page, re.M))
    blocks = read_blocks(page)
    shown = 0
    for block, following in zip(blocks, [*blocks[1:], Block("", "")], strict=True):
        expected = following.text if following.language == "text" else ""
        shown += bool(expected)
        if block.language == "python":
            reader.save_file(next(names), block.text)
        elif block.language == "sh":
            _check_block(reader, block.text.strip(), expected)
    assert next(names, None) is None
    assert [block.language for block in blocks].count("text") == shown
    assert reader.stack is not None
    assert reader.stack.interrupt() in (0, 130), reader.stack.text
    assert "data is kept" in reader.stack.text


def _check_block(reader: Reader, command: str, expected: str) -> None:
    match command:
        case "make demo":
            output = reader.run_demo()
        case _ if command == _UP:
            output = reader.start_stack().text
        case _ if command.startswith(_ASKS) and expected:
            wait_until(
                lambda: not missing_lines(expected, reader.run_block(command)), _COMMAND_S, f"{command}: {expected}"
            )
            return
        case _:
            output = reader.run_block(command)
    assert missing_lines(expected, output) == [], output


def test_the_comparison_of_outputs_can_fail() -> None:
    shown = "session        last_at         events\n8446f32f-7611  11-22 03:03:46  5\nnothing was heard\n"
    other = "session   last_at         events\n0000aaaa-0001  11-23 10:00:00  12\nnothing was heard\nmore\n"
    assert comparable_lines(shown) == ["session last_at events", "<id> <time> <number>", "nothing was heard"]
    assert missing_lines(shown, other) == []
    assert missing_lines(shown, other.replace("nothing", "something")) == ["nothing was heard"]
    assert missing_lines("a\nb\n", "b\na\n") == ["b"]
    assert comparable_lines("127.0.0.1:28592 T06 5s:") == ["<number> T06 5s:"]


def test_blocks_are_read_in_order() -> None:
    assert read_blocks("x\n```sh\na\nb\n```\ny\n```text\nc\n```\n") == [Block("sh", "a\nb\n"), Block("text", "c\n")]
