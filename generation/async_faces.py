"""Make the client's asyncio faces from those for threads: python -m generation.async_faces.

The first statement of a method has one call. `KINDS` says how that is made with asyncio, and the
tables below it say what else differs. Names, signatures and docstrings are those of the text.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

WIDTH: Final = 100  # of docstrings
_ENTRY: Final = re.compile(r" {12,}\w+: ")  # of a list of arguments or errors
PRODUCERS: Final = Path(__file__).parent.parent / "producers/sessionary/producers"

KINDS: Final[Mapping[str, str]] = {
    "here": "{call}",  # no coroutine: it neither sends nor waits
    "send": "await hand_over(self.core, {arguments})",  # hands events over; never sent later if it is cancelled
    "end": "await end_anyway(self.core, {arguments})",  # ends the session, also if it is cancelled
    "wait": "await asyncio.to_thread({arguments})",  # waits for Kafka, for the processor or for a store
    "flow": "await {call}",  # sends and waits in turn
}


CANCELLED: Final = """None of its verbs blocks the event loop.

    Every verb may be cancelled, for example by `asyncio.timeout`. What it had handed over stays
    sent, before all that is sent later; what it had not is never sent. Only verbs that end the
    session end it all the same. A cancelled `resume` or `recover` may still be granted: call it
    again to go on waiting."""


class Face(NamedTuple):
    """A module that is made of another one.

    Attributes:
        source: The module for threads.
        target: The one for asyncio.
        kinds: What the methods of its classes become; without an entry: `here`.
        texts: What is replaced in code and docstrings, in this order, as regular expressions.
        by_hand: Methods that are written by hand, in the base of a class; by the class's name.
        imports: What the target needs besides; unused imports go.
    """

    source: str
    target: str
    kinds: Mapping[str, str]
    texts: Mapping[str, str]
    by_hand: Mapping[str, frozenset[str]]
    imports: str


SESSION: Final = Face(
    "session/session.py",
    "session/async_session.py",
    {
        **dict.fromkeys(("emit", "activity", "info", "progress", "usage", "snapshot"), "send"),
        **dict.fromkeys(("pause", "error", "enter_phase"), "send"),
        **dict.fromkeys(("complete", "close", "cancel", "force_close", "fail_start"), "end"),
        **dict.fromkeys(("sync", "read", "get", "list", "handoff", "execution", "artifacts", "verify"), "wait"),
        **dict.fromkeys(("message", "add_result", "update_state", "start_task", "ask"), "flow"),
        **dict.fromkeys(("start", "resume", "recover", "move"), "flow"),
    },
    {
        r"^class Session:": "class Session(OpenedLater):",
        r"\b(Session(Lifecycle|Conversation|Agents|Migration|Recorded|Client)?)\b(?!`? underneath)": r"Async\1",
        r"agents\.agent import Agent": "agents.async_agent import AsyncAgent",
        r"\b(Agent|Step)\b(?=[:(, ])": r"Async\1",
        r"run_session_flow\(": "run_session_flow_async(",
        r"Blocks (until|for)": r"Waits \1",
        r"wait for the answer\. Blocks\.": "wait for the answer.",
        r" Called in phase": " Awaited in phase",
        r"in `with`": "in `async with`",
        r"the `with` block": "the `async with` block",
        r"^( +)with session\.(llm|run|resume_run)": r"\1async with session.\2",
        r"= (ask_model|session\.ask|session\.start_task|session\.agents\.get|run\.step)\(": r"= await \1(",
        r"^( +)(session\.(activity|message))\(": r"\1await \2(",
        r"`KeyboardInterrupt`, `SystemExit`": "cancellation, `SystemExit`",
        r"It is thread-safe, and a context manager\.": "It is an async context manager. " + CANCELLED,
    },
    {"Session": frozenset({"__init__", "__enter__", "__exit__"})},
    "import asyncio\nfrom sessionary.producers.session.async_opening import AsyncStep, OpenedLater, end_anyway, "
    "hand_over, run_session_flow_async\n",
)
AGENT: Final = Face(
    "agents/agent.py",
    "agents/async_agent.py",
    dict.fromkeys(("begin", "share", "finish", "handoff", "view"), "wait"),
    {
        r"\b(Session|Agent)\b(?!View)": r"Async\1",
        r"; thread-safe\.": ".",
        r"Its verbs wait for": "Its verbs wait in a thread for",
        r"\n`Async.*\n\"\"\"": '"""',
    },
    {},
    "import asyncio\n",
)
FACES: Final = (SESSION, AGENT)


def made_text(face: Face) -> str:
    """Return the text of a face for asyncio, before it is formatted."""
    source = (PRODUCERS / face.source).read_text()
    lines, tree = source.splitlines(keepends=True), ast.parse(source)
    for node in reversed(list(_methods(tree))):
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
        if node.name in face.by_hand.get(_class_of(node, tree), ()):
            lines[first : node.end_lineno] = []
        else:
            lines[node.lineno - 1 : node.end_lineno] = [_method(source, node, face.kinds.get(node.name, "here"))]
    text = "".join(lines)
    for pattern, other in face.texts.items():
        text, count = re.subn(pattern, other, text, flags=re.M)
        assert count, f"nothing in {face.source} is {pattern}"
    return _filled(text.replace("\n\nfrom ", f"\n\n{face.imports}from ", 1))


def written_text(face: Face) -> str:
    """Return the text of a face for asyncio as it is checked in."""
    text, name = made_text(face), str(PRODUCERS / face.target)
    for command in (["check", "--fix", "--select", "F401,I001,RUF022"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", name, "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def _methods(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for each in tree.body:
        if isinstance(each, ast.ClassDef):
            yield from (node for node in each.body if isinstance(node, ast.FunctionDef))


def _class_of(node: ast.FunctionDef, tree: ast.Module) -> str:
    return next(each.name for each in tree.body if isinstance(each, ast.ClassDef) and node in each.body)


def _method(source: str, node: ast.FunctionDef, kind: str) -> str:
    """Return a method as it is with asyncio."""
    lines = source.splitlines(keepends=True)
    if kind == "here":
        return "".join(lines[node.lineno - 1 : node.end_lineno])
    statement = next(each for each in node.body if not _is_docstring(each))
    call = next(each for each in ast.walk(statement) if isinstance(each, ast.Call))
    if isinstance(call.func, ast.Name) and isinstance(call.args[0], ast.Call) and len(call.args) == 1:
        call = call.args[0]  # of a class, whose argument waits
    head = "".join(lines[node.lineno - 1 : statement.lineno - 1]).replace("def ", "async def ", 1)
    tail = "".join(lines[statement.lineno - 1 : node.end_lineno])
    arguments = [ast.unparse(call.func), *map(ast.unparse, call.args), *map(ast.unparse, call.keywords)]
    written = ast.get_source_segment(source, call) or ""
    assert written in tail, node.name
    return head + tail.replace(written, KINDS[kind].format(call=written, arguments=", ".join(arguments)), 1)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _filled(text: str) -> str:
    """Return a text in which a docstring's long lines give their last words to the next line."""
    lines, is_inside, at = text.split("\n"), False, 0
    while at < len(lines):
        line = lines[at]
        is_inside ^= line.count('"""') % 2 == 1
        if is_inside and len(line) > WIDTH and '"""' not in line:
            cut, after = line.rfind(" ", 0, WIDTH + 1), lines[at + 1]
            rest = line[cut + 1 :]
            lines[at] = line[:cut]
            if after.strip() and '"""' not in after and not _ENTRY.match(after):
                indent = len(after) - len(after.lstrip())
                lines[at + 1] = f"{after[:indent]}{rest} {after.lstrip()}"
            else:
                indent = len(line) - len(line.lstrip()) + 4 * bool(_ENTRY.match(line))
                lines.insert(at + 1, " " * indent + rest)
        at += 1
    return "\n".join(lines)


def main() -> int:
    """Write the faces."""
    for face in FACES:
        (PRODUCERS / face.target).write_text(written_text(face))
    return 0


if __name__ == "__main__":
    sys.exit(main())
