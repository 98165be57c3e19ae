"""The mutants of a module: every fault of the operators, at every place where it applies.

Ids do not depend on line numbers: they consist of module, function, operator, and a checksum of the
original and the mutated code.
"""

import ast
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from sessionary.schemas.events import PAYLOADS
from tests.mutants.operators import Replacement, drop_elements, exchange_values, replacements, toggle_element
from tests.mutants.transition_faults import of_transitions

# Sets of event types: each type is added or removed. `ACCEPTED` is one such set per state.
EVENT_SETS = frozenset({"PROCESSOR_EVENTS", "OWNER_ONLY", "CONTENT", "COMPLETIONS", "ACCEPTED", "EPOCH_EXEMPT"})
# Literals of which each entry is dropped.
TABLES = frozenset(
    {"PHASES", "RANGES", "SECURITY_REASONS", "_MEMORY_FIRST", "_EXCEPTION_FIRST", "_PLAIN_END"}
    | {"_SPECIAL_RULES", "_EFFECTS", "_REPORTS"}
)
# Types that only count as work are all alike; these few of them are tried.
_ALIKE = frozenset({"session_activity", "run_started", "tool_call_started", "usage_recorded", "tool_call_unknown"})
_SPECIAL = frozenset({"heartbeat", "state_updated", "resources_released", "snapshot_created", "checkpoint_saved"})
EVENT_TYPES = tuple(
    name for name in PAYLOADS if name.startswith("session_") or name in _ALIKE | _SPECIAL or "tool_call" in name
)
_SKIPPED_FIELDS = ("annotation", "returns", "decorator_list", "type_params", "ctx", "format_spec")
_SKIPPED = (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Assert, ast.arguments, ast.arg)


class Mutant(NamedTuple):
    """One fault. `hint` is the event type that it concerns, or empty."""

    id: str
    module: str
    line: int
    operator: str
    before: str
    after: str
    hint: str
    place: tuple[Any, str, int | None]
    node: ast.AST
    tree: ast.Module

    def source(self) -> str:
        """Return the mutated module's text. Changes the tree: call it once per tree."""
        owner, field, index = self.place
        if index is None:
            setattr(owner, field, self.node)
        else:
            getattr(owner, field)[index] = self.node
        return ast.unparse(ast.fix_missing_locations(self.tree))


def mutants_of(module: str, text: str) -> list[Mutant]:
    """Return all mutants of a module, in source order."""
    tree = ast.parse(text)
    found: list[Mutant] = []
    times: Counter[str] = Counter()
    for site in _sites(tree, "", ""):
        for operator, node, hint in _faults(site):
            before, after = ast.unparse(site.node), ast.unparse(node)
            if before == after:
                continue
            name = f"{module}:{site.scope or '-'}:{operator.replace(' ', '-')}"
            text_sum = zlib.crc32(f"{before}\0{after}".encode()) & 0xFFFFFF
            base = f"{name}:{text_sum:06x}"
            times[base] += 1
            id_ = base if times[base] == 1 else f"{base}.{times[base]}"
            line = _line(site.node) or _line(site.place[0])
            found.append(Mutant(id_, module, line, operator, before, after, hint, site.place, node, tree))
    return found


def _line(node: ast.AST) -> int:
    line: int = getattr(node, "lineno", 0)
    return line


class Site(NamedTuple):
    """A node, its place in the parent, its function, and the module constant that contains it."""

    node: ast.AST
    place: tuple[Any, str, int | None]
    scope: str
    constant: str


def _sites(parent: ast.AST, scope: str, constant: str) -> Iterator[Site]:
    for field, value in ast.iter_fields(parent):
        if field in _SKIPPED_FIELDS or (field == "func" and isinstance(parent, ast.Call)):
            continue
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or isinstance(node, _SKIPPED) or _is_doc(node) or _is_for_checkers(node):
                continue
            inner, name = scope, constant
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                inner = f"{scope}.{node.name}" if scope else node.name
            elif not scope and isinstance(node, ast.Assign | ast.AnnAssign):
                name = _target(node)
                if name == "__all__" or _is_alias(node):
                    continue
            yield Site(node, (parent, field, index if isinstance(value, list) else None), inner, name)
            yield from _sites(node, inner, name)
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
        yield from _sites(parent.func, scope, constant)


def _is_doc(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_for_checkers(node: ast.AST) -> bool:
    """Return True for a block that never runs: imports for type checkers only."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def _is_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    """Return True if this assignment is a type alias or a type variable."""
    value = node.value
    if isinstance(node, ast.AnnAssign) or value is None:
        return value is None
    if isinstance(value, ast.Subscript) or (isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"):
        return True
    return isinstance(value, ast.BinOp) and _target(node).istitle()


def _faults(site: Site) -> Iterator[tuple[str, ast.AST, str]]:
    if site.constant == "TRANSITIONS":
        yield from _plain(of_transitions(site.node, site.place[0]))
        return
    if site.constant in TABLES and not site.scope:
        yield from _plain(drop_elements(site.node))
        yield from _plain(exchange_values(site.node))
    if site.constant == "PHASES" and isinstance(site.node, ast.Call):
        yield from _plain(_more_phases(site.node))
    if site.constant in EVENT_SETS and not site.scope:
        if _is_event_set(site):
            assert isinstance(site.node, ast.expr)
            for name in EVENT_TYPES:
                yield "event type in or out", toggle_element(site.node, ast.Constant(name)), name
        return
    yield from _plain(replacements(site.node))


def _plain(found: Iterator[Replacement]) -> Iterator[tuple[str, ast.AST, str]]:
    return ((operator, node, "") for operator, node in found)


def _is_event_set(site: Site) -> bool:
    parent, field, _ = site.place
    if site.constant == "ACCEPTED":
        return isinstance(parent, ast.Dict) and field == "values"
    return isinstance(parent, ast.Assign) and field == "value"


def _more_phases(node: ast.Call) -> Iterator[Replacement]:
    """Yield a state's phases with an additional step."""
    steps = ast.literal_eval(node.args[0])
    names = sorted({name for step in steps for name in step if name is not None})
    for step in ((a, b) for a in names for b in names if (a, b) not in steps):
        yield "step added", toggle_element(node, ast.Tuple([ast.Constant(word) for word in step], ast.Load()))
