"""Command lines that texts show or name, parsed with the real tree of commands; nothing is run."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from functools import cache
from inspect import cleandoc
from typing import Any, Final

from typer.core import TyperGroup
from typer.main import get_command

from sessionary.infra.cli.app import make_app
from sessionary.infra.cli.command_tree import CommandTree, LateCommand, LateGroup, load_command

_MENTION: Final = re.compile(
    r"(?<![\w/.'-])(?:\.venv/bin/|\$\(BIN\)/)?sessionary(?P<rest>(?:[ \n]+(?!sessionary\b)[^\s`;|(),]+)+)"
)
_NAME: Final = re.compile(r"[a-z][a-z-]*")
_OPTION: Final = re.compile(r"--[a-z-]+")
# The package's name within a sentence or in Python is followed by one of these.
_PROSE: Final = frozenset(
    ("and", "control", "did", "import", "in", "is", "made", "pytest", "raises", "that", "tracks", "writes")
)


def parse_command(words: Sequence[str]) -> None:
    """Parse a command line as `sessionary` does. Raises typer's `UsageError`, `SettingsError`."""
    command: Any = get_command(make_app())
    context = command.make_context("sessionary", list(words))
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


def read_mentions(text: str) -> Iterator[list[str]]:
    """Yield the words after each `sessionary` of a text that may be a command.

    The lines of a block are apart, those of a sentence together.
    """
    for part in _parts(text):
        for found in _MENTION.finditer(part):
            words = []
            for word in found["rest"].split():
                words.append(word.rstrip(".:'\"\\"))
                if words[-1] != word:
                    break
            if words[0] not in _PROSE and _NAME.fullmatch(words[0]):
                yield words


def find_fault(words: Sequence[str]) -> str:
    """Return which command or option of a mention does not exist; '' if all do."""
    command: Any = _root()
    options, rest = {"--help"}, list(words)
    while rest and isinstance(command, TyperGroup) and _NAME.fullmatch(rest[0]):
        name = rest.pop(0)
        options |= _options_of(command)
        if name not in command.commands:
            return f"no command {name!r}"
        command = _load(command.late[name]) if isinstance(command, CommandTree) else command.commands[name]
    options |= _options_of(command)
    named = {match[0] for word in rest if (match := _OPTION.match(word))}
    return f"no option {', '.join(sorted(named - options))}" if named - options else ""


def texts_of(name: str, text: str) -> Iterator[str]:
    """Yield the texts of a file that may name commands: of Python, its strings and comments."""
    if not name.endswith(".py"):
        yield text
        return
    tree = ast.parse(text)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield "".join(part for part in parts if isinstance(part, str))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield cleandoc(node.value)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield " ".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)


def _parts(text: str) -> Iterator[str]:
    """Yield the sentences' paragraphs, and each line of a block with those that continue it."""
    lines = re.sub(r" *\\\n *", " ", text).split("\n")
    paragraph: list[str] = []
    fenced = False
    for line in [*lines, ""]:
        fence = line.startswith("```")
        if line and not (fence or fenced or line.startswith(("    ", "|"))):
            paragraph.append(line)
            continue
        if paragraph:
            yield "\n".join(paragraph)
            paragraph = []
        fenced ^= fence
        yield line


@cache
def _root() -> Any:
    return get_command(make_app())


@cache
def _load(late: LateCommand | LateGroup) -> Any:
    return load_command(late)


def _options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
