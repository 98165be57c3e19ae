"""Small faults in a syntax tree: what each kind of node is replaced by.

`replacements(node)` yields pairs (operator, other node).
"""

import ast
import copy
from collections.abc import Iterator

Replacement = tuple[str, ast.AST]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Names that are easily confused.
_SIBLINGS = {
    "last_event_at": "last_work_at",
    "last_work_at": "last_event_at",
    "entered_at": "created_at",
    "created_at": "entered_at",
    "released_at": "entered_at",
    "max_due_at": "entered_at",
    "now_ms": "outage_grace_until_ms",
    "outage_grace_until_ms": "now_ms",
    "init_ms": "recovery_ms",
    "recovery_ms": "grace_ms",
    "grace_ms": "hold_ms",
    "hold_ms": "init_ms",
    "archive_delay_ms": "release_limit_ms",
    "release_limit_ms": "archive_delay_ms",
    "idle_ms": "max_duration_ms",
    "max_duration_ms": "idle_ms",
    "model_ms": "tool_ms",
    "tool_ms": "network_ms",
    "network_ms": "model_ms",
    "outage_ms": "outage_grace_ms",
    "records_max": "timers_max",
    "timers_max": "output_bytes_max",
    "output_bytes_max": "records_max",
    "first": "last",
}
_DROPPED_STATEMENTS = (ast.AugAssign, ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Delete)


def replacements(node: ast.AST) -> Iterator[Replacement]:
    """Yield every fault of one node."""
    match node:
        case ast.Compare(ops=[op]):
            yield from (("comparison", _with(node, ops=[other()])) for other in _COMPARISONS.get(type(op), ()))
        case ast.BoolOp():
            yield from _of_bool(node)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "not dropped" if isinstance(node.op, ast.Not) else "sign dropped", operand
        case ast.Constant():
            yield from _of_constant(node)
        case ast.BinOp(left=left, right=right, op=ast.Add() | ast.Sub()):
            other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield "sum", _with(node, op=other)
            yield from (("part of sum dropped", part) for part in (left, right))
        case ast.BinOp(left=left, right=right, op=ast.BitOr() | ast.BitAnd()) if not _is_type(node):
            yield from (("part of sum dropped", part) for part in (left, right))
        case ast.Call():
            yield from _of_call(node)
        case ast.Attribute(attr=attr, ctx=ast.Load()) if attr in _SIBLINGS:
            yield "sibling", _with(node, attr=_SIBLINGS[attr])
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "branches swapped", ast.IfExp(test, orelse, body)
        case ast.comprehension(ifs=[_, *_]):
            yield "filter dropped", _with(node, ifs=[])
        case ast.match_case(guard=ast.expr()):
            yield "guard dropped", _with(node, guard=None)
        case ast.stmt():
            yield from _of_statement(node)


def _of_statement(node: ast.stmt) -> Iterator[Replacement]:
    match node:
        case ast.If(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp) and not _is_not(test):
                yield "condition negated", _with(node, test=ast.UnaryOp(ast.Not(), test))
            if not node.orelse:
                yield "branch dropped", ast.Pass()
        case ast.While(test=test):
            yield "loop dropped", ast.Pass()
        case ast.Expr(value=ast.Call()):
            yield "statement dropped", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement dropped", ast.Pass()
        case ast.Match(cases=cases) if len(cases) > 1:
            for n in range(len(cases)):
                yield "case dropped", _with(node, cases=cases[:n] + cases[n + 1 :])
        case _ if isinstance(node, _DROPPED_STATEMENTS):
            yield "statement dropped", ast.Pass()


def _of_bool(node: ast.BoolOp) -> Iterator[Replacement]:
    yield "boolean", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for n in range(len(node.values)):
        rest = node.values[:n] + node.values[n + 1 :]
        yield "condition dropped", rest[0] if len(rest) == 1 else _with(node, values=rest)


def _of_constant(node: ast.Constant) -> Iterator[Replacement]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int):
        yield from (("constant", ast.Constant(value + by)) for by in (1, -1))
    elif isinstance(value, str) and value.replace("_", "").isalnum():  # a code; sentences are not mutated
        yield "word", ast.Constant("mutated")


def _of_call(node: ast.Call) -> Iterator[Replacement]:
    match node.func:
        case ast.Name(id=name) if name in _CALLS:
            yield "function", _with(node, func=ast.Name(_CALLS[name], ast.Load()))
        case ast.Attribute(attr="_replace") | ast.Name(id="Transitioned" | "Decision" | "Grounds" | "SequenceCheck"):
            for n, keyword in enumerate(node.keywords):
                if keyword.arg is not None:
                    yield "field dropped", _with(node, keywords=node.keywords[:n] + node.keywords[n + 1 :])


def drop_elements(node: ast.AST) -> Iterator[Replacement]:
    """Yield a table's literal without one of its entries."""
    match node:
        case ast.Dict(keys=keys, values=values):
            for n in range(len(keys)):
                rest = {"keys": keys[:n] + keys[n + 1 :], "values": values[:n] + values[n + 1 :]}
                yield "entry dropped", _with(node, **rest)
        case ast.Tuple(elts=elts) | ast.Set(elts=elts) if len(elts) > 1:
            for n in range(len(elts)):
                yield "entry dropped", _with(node, elts=elts[:n] + elts[n + 1 :])


def exchange_values(node: ast.AST) -> Iterator[Replacement]:
    """Yield a dict literal with one key's value replaced by the next key's."""
    if isinstance(node, ast.Dict) and len(node.keys) > 1:
        for n in range(len(node.keys)):
            other = node.values[(n + 1) % len(node.values)]
            yield "value exchanged", _with(node, values=[*node.values[:n], other, *node.values[n + 1 :]])


def toggle_element(node: ast.expr, element: ast.expr) -> ast.expr:
    """Return a set expression with one element added or removed."""
    return ast.BinOp(node, ast.BitXor(), ast.Set([element]))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_type(node: ast.AST) -> bool:
    """Return True if an expression has types only, as in aliases and `isinstance`."""
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return all(name[:1].isupper() and not name.isupper() for name in names)
