"""What the source of a test names, with the helpers of its file that it uses."""

import ast
import re
from collections.abc import Collection
from typing import NamedTuple


class Mentions(NamedTuple):
    """What a test names: the strings of its source, and what it imports from other modules.

    `imports` has a pair of module and name for each.
    """

    strings: frozenset[str]
    imports: frozenset[tuple[str, str]]

    def name_word(self, *words: str) -> bool:
        """Return whether one of these words is part of a string, with no letter beside it."""
        pattern = re.compile(rf"(?<![A-Za-z_])(?:{'|'.join(map(re.escape, words))})(?![A-Za-z_])")
        return any(pattern.search(text) for text in self.strings)


def find_mentions(source: str, test: str, leave_out: Collection[str] = ()) -> Mentions | None:
    """Return what a test of a file names, None if the file has no such test.

    What it uses of the same file counts too, but for the names of `leave_out`.
    """
    parts = _named_parts(ast.parse(source))
    if not isinstance(parts.get(test), ast.FunctionDef):
        return None
    imports = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    waiting, seen = [test], {test, *leave_out}
    strings: set[str] = set()
    used: set[tuple[str, str]] = set()
    while waiting:
        part = parts[waiting.pop()]
        for node in ast.walk(part):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != _docstring(part):
                strings.add(node.value)
            elif isinstance(node, ast.Name) and node.id in imports:
                used.add(imports[node.id])
            names = {node.id} if isinstance(node, ast.Name) else {node.arg} if isinstance(node, ast.arg) else set()
            waiting += sorted((names & parts.keys()) - seen)
            seen |= names
    return Mentions(frozenset(strings), frozenset(used))


def _named_parts(tree: ast.Module) -> dict[str, ast.AST]:
    parts: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            parts[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts |= {name.id: node for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return parts


def _docstring(part: ast.AST) -> str | None:
    return ast.get_docstring(part, clean=False) if isinstance(part, (ast.FunctionDef, ast.ClassDef)) else None
