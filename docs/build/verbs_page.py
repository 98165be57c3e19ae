"""The page of the client's verbs, from their signatures and docstrings.

A code host and a wheel show it as it is; the site's reference has the whole docstrings.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from sessionary import producers
from sessionary.producers.tasks import TaskContext, task

PAGE = Path(__file__).parents[2] / "docs" / "verbs.md"
_HEAD = """\
# Verbs of the client

All verbs of `sessionary.producers`, each with its parameters and their defaults, the first sentence
of its documentation, and the errors that it names itself. `help(Session.ask)` prints the rest, and
`make docs` builds it as pages. `AsyncSessionClient`, `AsyncSession` and `AsyncAgent` have the same
verbs for asyncio: those that wait are awaited. `**metadata` are the fields of `EventMetadata`.
"""


class Group(NamedTuple):
    """The verbs of one class, and the expression under which a program has its object."""

    cls: type
    called: str


class Verb(NamedTuple):
    """One verb as a row of the page shows it."""

    call: str
    returns: str
    effect: str
    errors: tuple[str, ...]


GROUPS: Final = (
    Group(producers.SessionClient, "client"),
    Group(producers.Session, "session"),
    Group(producers.SessionConversation, "session.conversation"),
    Group(producers.SessionAgents, "session.agents"),
    Group(producers.SessionRecords, "session.records"),
    Group(producers.SessionMigration, "session.migration"),
    Group(producers.SessionLifecycle, "session.lifecycle"),
    Group(producers.Run, "run"),
    Group(producers.ModelCall, "call"),
    Group(producers.Decision, "decision"),
    Group(producers.Turn, "turn"),
    Group(producers.Transaction, "transaction"),
    Group(producers.Agent, "agent"),
    Group(producers.SessionFollower, "follower"),
    Group(producers.Replay, "replay"),
    Group(producers.SessionRecord, "record"),
    Group(producers.ArtifactLibrary, "library"),
    Group(TaskContext, "ctx"),
)
FUNCTIONS: Final = (producers.tool, producers.traced, producers.current_tool_key, producers.current_session, task)


def verbs_page() -> str:
    """Return the page: a table of each group, then the decorators, then the errors."""
    parts = [_HEAD]
    for group in GROUPS:
        parts += [f"## {group.cls.__name__}, as `{group.called}`", "", _sentence(group.cls), ""]
        parts += [*_table(verbs_of(group)), ""]
    parts += ["## Functions and decorators", ""]
    parts += [*_table(_verb(_node_of(each), each, each.__name__) for each in FUNCTIONS), ""]
    parts += ["## Errors", "", "Each is caught by the names to its right, too.", ""]
    parts += ["| error | meaning | is also |", "|---|---|---|", *_error_rows()]
    return "\n".join(parts) + "\n"


def verbs_of(group: Group) -> Iterator[Verb]:
    """Yield the public attributes, properties and methods of a class in the order of its text."""
    for name, meaning in _attributes(inspect.getdoc(group.cls) or ""):
        yield Verb(f"{group.called}.{name}", "", meaning, ())
    listed: dict[str, type] = {}
    for cls in reversed(group.cls.__mro__):
        if cls.__module__.startswith("sessionary."):
            listed |= {name: cls for name in vars(cls) if not name.startswith("_")}
    for name, cls in listed.items():
        found = vars(cls)[name]
        node = _members(cls).get(name)
        if node is None:
            continue
        is_property = not isinstance(found, staticmethod | classmethod) and not inspect.isfunction(found)
        yield _verb(node, found, f"{group.called}.{name}", is_property=is_property, bound=True)


def _verb(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    found: object,
    called: str,
    *,
    is_property: bool = False,
    bound: bool = False,
) -> Verb:
    returns = "" if node.returns is None else ast.unparse(node.returns).strip("'\"")
    module = inspect.getmodule(found)
    constants = {} if module is None else vars(module)
    call = called if is_property else f"{called}({', '.join(_parameters(node.args, constants, bound=bound))})"
    return Verb(
        call, "" if returns == "None" else returns, _sentence(found), _named_errors(inspect.getdoc(found) or "")
    )


def signature_of(function: object) -> str:
    """Return the parameters of a function or method with their defaults, and what it returns."""
    assert inspect.isfunction(function)
    [node] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    module = inspect.getmodule(function)
    returns = "" if node.returns is None else ast.unparse(node.returns).strip("'\"")
    return f"({', '.join(_parameters(node.args, {} if module is None else vars(module), bound=False))}) -> {returns}"


def _parameters(args: ast.arguments, constants: Mapping[str, object], *, bound: bool) -> Iterator[str]:
    listed = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(listed) - len(args.defaults)) + list(args.defaults)
    for place, (arg, default) in enumerate(zip(listed, defaults, strict=True)):
        if not (bound and place == 0):
            yield _parameter(arg, default, constants)
    if args.vararg is not None:
        yield f"*{args.vararg.arg}"
    elif args.kwonlyargs:
        yield "*"
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield _parameter(arg, default, constants)
    if args.kwarg is not None:
        yield f"**{args.kwarg.arg}"


def _parameter(arg: ast.arg, default: ast.expr | None, constants: Mapping[str, object]) -> str:
    """Return a parameter with its default; a constant's value says more than its name."""
    if default is None:
        return arg.arg
    if isinstance(default, ast.Name) and default.id in constants and not callable(constants[default.id]):
        return f"{arg.arg}={constants[default.id]!r}"
    return f"{arg.arg}={ast.unparse(default)}"


@cache
def _members(cls: type) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a class's body by name; of overloads the last."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _node_of(function: object) -> ast.FunctionDef | ast.AsyncFunctionDef:
    assert inspect.isfunction(function)
    tree = ast.parse(inspect.getsource(inspect.getmodule(function) or function))
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function.__name__]
    return nodes[-1]


def _sentence(found: object) -> str:
    """Return the first sentence of a docstring, in one line."""
    paragraph = re.sub(r"\s+", " ", (inspect.getdoc(found) or "").split("\n\n")[0])
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph)[0]


def _named_errors(docstring: str) -> tuple[str, ...]:
    """Return the errors that a docstring's section names."""
    _, _, section = docstring.partition("\nRaises:\n")
    named = re.findall(r"^    ([A-Z]\w+(?:, [A-Z]\w+)*):", section.split("\n\n")[0], re.M)
    return tuple(name for names in named for name in names.split(", "))


def _attributes(docstring: str) -> list[tuple[str, str]]:
    """Return the attributes that a class's docstring lists, each with its meaning."""
    _, _, section = docstring.partition("\nAttributes:\n")
    text = re.sub(r"\n {8,}", " ", section.split("\n\n")[0])
    return re.findall(r"^    (\w+): (.+)$", text, re.M)


def _table(verbs: Iterable[Verb]) -> Iterator[str]:
    yield "| verb | returns | effect | errors |"
    yield "|---|---|---|---|"
    for verb in verbs:
        cells = (_code(verb.call), _code(verb.returns), verb.effect, ", ".join(map(_code, verb.errors)))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _error_rows() -> Iterator[str]:
    public = [getattr(producers, name) for name in producers.__all__]
    errors = [each for each in public if isinstance(each, type) and issubclass(each, Exception)]
    for error in sorted(errors, key=lambda each: each.__name__):
        above = [f"`{cls.__name__}`" for cls in error.__mro__[1:] if cls not in (Exception, BaseException, object)]
        yield f"| `{error.__name__}` | {_sentence(error)} | {', '.join(above)} |"


def write() -> Iterable[Path]:
    """Write the page, and return its file."""
    PAGE.write_text(verbs_page(), "utf-8")
    return [PAGE]
