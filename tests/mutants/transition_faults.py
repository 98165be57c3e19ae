"""Faults in the table of transitions: rows dropped, and rows with one field changed."""

import ast
from collections.abc import Iterator

from tests.mutants.operators import Replacement, drop_elements

_BY_POSITION = ("id", "source", "event_type", "target", "phase", "by", "reasons")
_STATES = ("Idle", "Active", "Paused", "Timeout", "Error", "Terminated", "Archived")
_WORDS = {
    "source": _STATES,
    "event_type": ("session_started", "session_paused", "session_terminated", "session_activity"),
    "target": _STATES,
    "phase": ("creating", "connecting", "processing", "cleaning", "logging", "recovery", "releasing", "clearing"),
    "by": ("client", "processor", "either"),
}
_REASONS = ("closed", "cancelled", "forced", "UNKNOWN", "timeout_cleanup")
_WORDS_MAX = 3
_EXCHANGES_MAX = 2
Fields = dict[str, ast.expr]


def of_transitions(node: ast.AST, parent: ast.AST) -> Iterator[Replacement]:
    """Yield the table without a row, or a row with a changed field; `parent` is a row's table."""
    if isinstance(node, ast.Tuple) and all(map(_is_row, node.elts)):
        yield from drop_elements(node)
    if isinstance(node, ast.Call) and _is_row(node) and isinstance(parent, ast.Tuple):
        row, rows = _fields(node), [_fields(other) for other in parent.elts if isinstance(other, ast.Call)]
        for operator, fields in _row_faults(row, rows):
            yield operator, ast.Call(node.func, [], [ast.keyword(name, value) for name, value in fields.items()])


def _is_row(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Transition"


def _fields(row: ast.Call) -> Fields:
    by_name = {keyword.arg: keyword.value for keyword in row.keywords if keyword.arg is not None}
    return dict(zip(_BY_POSITION, row.args, strict=False)) | by_name


def _row_faults(row: Fields, rows: list[Fields]) -> Iterator[tuple[str, Fields]]:
    for name, words in _WORDS.items():
        given = ast.literal_eval(row[name])
        for word in [word for word in _after(given, words)[:_WORDS_MAX] if word != given]:
            yield f"{name} changed", row | {name: ast.Constant(word)}
    yield from _reason_faults(row)
    for name in ("guard", "effect", "cleanup"):
        if name in row:
            yield f"{name} dropped", {other: value for other, value in row.items() if other != name}
            for value in _others(row[name], [other[name] for other in rows if name in other])[:_EXCHANGES_MAX]:
                yield f"{name} exchanged", row | {name: value}
    if "clocks" in row:
        given_clocks, all_clocks = _elements(row["clocks"]), [c for r in rows for c in _elements(r.get("clocks"))]
        for clocks in _clock_faults(given_clocks, all_clocks):
            yield "clocks changed", row | {"clocks": ast.Tuple(clocks, ast.Load())}
    if "cleanup" in row:
        yield from (("plan changed", row | {"cleanup": plan}) for plan in _plan_faults(row["cleanup"], rows))


def _reason_faults(row: Fields) -> Iterator[tuple[str, Fields]]:
    reasons = ast.literal_eval(row["reasons"]) if "reasons" in row else ()
    for n in range(len(reasons)):
        yield "reason dropped", row | {"reasons": _words(reasons[:n] + reasons[n + 1 :])}
    for word in _REASONS:
        if word not in reasons:
            yield "reason added", row | {"reasons": _words((*reasons, word))}


def _clock_faults(clocks: list[ast.expr], all_clocks: list[ast.expr]) -> Iterator[list[ast.expr]]:
    """Yield a row's clocks without one, with another one in its place, and in reverse order."""
    for n, clock in enumerate(clocks):
        yield clocks[:n] + clocks[n + 1 :]
        yield [*clocks[:n], *_others(clock, all_clocks)[:1], *clocks[n + 1 :]]
    if len(clocks) > 1:
        yield clocks[::-1]


def _plan_faults(plan: ast.expr, rows: list[Fields]) -> Iterator[ast.expr]:
    """Yield a clean-up plan without an argument or a reason, and with other actions."""
    if not isinstance(plan, ast.Call):
        return
    all_actions = [part for row in rows if "cleanup" in row for part in _action_names(row["cleanup"])]
    for n, argument in enumerate(plan.args):
        for other in _argument_faults(argument, all_actions):
            yield ast.Call(plan.func, [*plan.args[:n], other, *plan.args[n + 1 :]], plan.keywords)
    for n, keyword in enumerate(plan.keywords):
        before, after = plan.keywords[:n], plan.keywords[n + 1 :]
        yield ast.Call(plan.func, plan.args, before + after)
        for other in _argument_faults(keyword.value, all_actions):
            yield ast.Call(plan.func, plan.args, [*before, ast.keyword(keyword.arg, other), *after])


def _argument_faults(argument: ast.expr, all_actions: list[ast.expr]) -> Iterator[ast.expr]:
    if isinstance(argument, ast.Name):
        yield from _others(argument, all_actions)
    elif isinstance(argument, ast.Dict):
        keys, values = argument.keys, argument.values
        for n, value in enumerate(values):
            yield ast.Dict(keys[:n] + keys[n + 1 :], values[:n] + values[n + 1 :])
            for other in _others(value, all_actions):
                yield ast.Dict(keys, [*values[:n], other, *values[n + 1 :]])


def _action_names(plan: ast.expr) -> list[ast.expr]:
    """Return the names of constants in a plan: its tuples of actions."""
    return [part for part in ast.walk(plan) if isinstance(part, ast.Name) and part.id.startswith("_")]


def _others(given: ast.expr, found: list[ast.expr]) -> list[ast.expr]:
    """Return each different expression once, those after `given` first, without `given`."""
    by_text = {ast.unparse(expression): expression for expression in found}
    return [by_text[text] for text in _after(ast.unparse(given), tuple(by_text)) if text != ast.unparse(given)]


def _after(given: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words that follow `given`, around the end."""
    start = words.index(given) + 1 if given in words else 0
    return words[start:] + words[:start]


def _elements(node: ast.expr | None) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else []


def _words(words: tuple[str, ...]) -> ast.expr:
    return ast.Tuple([ast.Constant(word) for word in words], ast.Load())
