"""Make the client's asyncio faces from those for threads: python -m generation.async_faces.

The last statement of a method that calls has one call. `face_tables` says how that is made with
asyncio, and what else differs. Names, signatures and docstrings are those of the text.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from generation.face_tables import FACES, KINDS, Face

WIDTH: Final = 100  # of docstrings
_ENTRY: Final = re.compile(r" {12,}\w+: ")  # of a list of arguments or errors
PRODUCERS: Final = Path(__file__).parent.parent / "producers/sessionary/producers"


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
    statement = [each for each in node.body if _calls_in(each)][-1]
    call = _calls_in(statement)[0]
    if isinstance(call.func, ast.Name) and isinstance(call.args[0], ast.Call) and len(call.args) == 1:
        call = call.args[0]  # of a class, whose argument waits
    head = "".join(lines[node.lineno - 1 : statement.lineno - 1])
    if "await" in KINDS[kind]:
        head = head.replace("def ", "async def ", 1)
    tail = "".join(lines[statement.lineno - 1 : node.end_lineno])
    arguments = [ast.unparse(call.func), *map(ast.unparse, call.args), *map(ast.unparse, call.keywords)]
    written = ast.get_source_segment(source, call) or ""
    assert written in tail, node.name
    return head + tail.replace(written, KINDS[kind].format(call=written, arguments=", ".join(arguments)), 1)


def _calls_in(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


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
