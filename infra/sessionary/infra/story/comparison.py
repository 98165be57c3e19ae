"""Two traces of work side by side: what agrees, where they part first, and what each one cost.

A trace has the tool calls and the recorded steps of a run, or of a whole session, in the order in
which they began. Pieces of two traces agree by name; then by arguments; then by result.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sessionary.infra.story.story import Row

LEVELS: Final = ("name", "arguments", "result")
# Of what follows the common beginning: an alignment takes 0.1 s for so many pieces of each.
ALIGNED_MAX: Final = 500
_ENDS: Final = ("tool_call_succeeded", "tool_call_failed", "tool_call_resolved", "step_succeeded", "step_failed")


class Piece(NamedTuple):
    """A tool call, or a step with all its attempts.

    Attributes:
        kind: `tool` or `step`.
        name: Name of the tool or the step.
        arguments: Arguments or input, as JSON in one form; None if they are unknown.
        result: Result or output, as JSON in one form; of a failure its code; None if unknown.
        state: `running`, `succeeded` or `failed`.
        failures: Tries that failed.
    """

    kind: str
    name: str
    arguments: str | None
    result: str | None = None
    state: str = "running"
    failures: int = 0

    def key(self, level: str) -> tuple[str | None, ...]:
        """Return what is equal of pieces that agree at a level."""
        parts = (self.kind, self.name, self.arguments, self.result, self.state)
        return parts if level == "result" else parts[: 2 + LEVELS.index(level)]


class Trace(NamedTuple):
    """The work of a run, or of a session, with its totals.

    Attributes:
        pieces: The work, in the order in which it began.
        task_type: The kind of task of the first run; None without one.
        input: That run's input as JSON; None if it has none.
        prompts: Versions of prompts by the prompts' ids, of runs and decisions.
        result: Result of the last completed run, as JSON.
        score: The member `score` of that result, if it is a number.
        model_calls: Reported uses of models and tools.
        tokens_in: Their tokens in.
        tokens_out: Their tokens out.
        cost_usd_nanos: Their cost, in billionths of a US dollar.
    """

    pieces: tuple[Piece, ...]
    task_type: str | None
    input: str | None
    prompts: Mapping[str, str]
    result: str | None
    score: float | None
    model_calls: int
    tokens_in: int
    tokens_out: int
    cost_usd_nanos: int

    @property
    def tools(self) -> list[str]:
        """The names of the called tools, in order."""
        return [piece.name for piece in self.pieces if piece.kind == "tool"]

    @property
    def calls(self) -> int:
        """The number of tool calls."""
        return len(self.tools)

    @property
    def failures(self) -> int:
        """The number of tries of calls and steps that failed."""
        return sum(piece.failures for piece in self.pieces)


class Pair(NamedTuple):
    """A piece of each trace, or of one; `agrees`: the last level at which they are equal, or ''."""

    first: Piece | None
    second: Piece | None
    agrees: str


class Divergence(NamedTuple):
    """The first place at which two traces differ at a level; a trace that has ended has None."""

    number: int  # of the pieces, from 1
    first: Piece | None
    second: Piece | None


class Comparison(NamedTuple):
    """Two traces aligned by name; `divergences` has each level, None where they are equal."""

    pairs: tuple[Pair, ...]
    divergences: Mapping[str, Divergence | None]
    is_cut: bool  # there is more than is aligned


class Origin(NamedTuple):
    """Where a trace comes from: its session's ids, from its own to the oldest one known."""

    session_ids: Sequence[str]
    trace: Trace


def common_origin(first: Origin, second: Origin) -> str | None:
    """Return the origin that two traces have in common, in words; None if they have none.

    It is a session of which both are or descend; or else the same task with the same input, for
    which both used a prompt of one id.
    """
    shared = next((each for each in first.session_ids if each in second.session_ids), None)
    if shared is not None:
        is_own = first.session_ids[0] == second.session_ids[0]
        return f"both are of session {shared}" if is_own else f"both descend from session {shared}"
    one, other = first.trace, second.trace
    prompts = sorted(one.prompts.keys() & other.prompts.keys())
    if prompts and one.input is not None and (one.task_type, one.input) == (other.task_type, other.input):
        return f"both are of the task {one.task_type} with the same input and the prompt {prompts[0]}"
    return None


def make_trace(rows: Sequence[Row]) -> Trace:
    """Return the trace of a session's rows of `history`, or of those of one of its runs.

    The rows are in the log's order, each event once, without rejected ones.
    """
    pieces: dict[tuple[str, ...], Piece] = {}
    prompts: dict[str, str] = {}
    task = given = result = None
    calls = tokens_in = tokens_out = cost = 0
    for row in rows:
        event_type, payload = row["event_type"], json.loads(row["payload_json"] or "{}")
        _add_piece(pieces, row, payload)
        if event_type == "run_started":
            prompts |= payload.get("prompt_versions") or {}
            if task is None:
                task, given = payload.get("task_type"), one_form(payload.get("input_json"))
        elif event_type == "llm_decision" and payload.get("prompt_id"):
            prompts[payload["prompt_id"]] = payload.get("prompt_version") or ""
        elif event_type == "run_completed":
            result = one_form(payload.get("result_json"))
        elif event_type == "usage_recorded":
            calls, tokens_in, tokens_out = calls + 1, tokens_in + row["tokens_in"], tokens_out + row["tokens_out"]
            cost += row["cost_usd_nanos"]
    of_run = task, given, prompts, result, _score_of(result)
    return Trace(tuple(pieces.values()), *of_run, calls, tokens_in, tokens_out, cost)


def _add_piece(pieces: dict[tuple[str, ...], Piece], row: Row, payload: Mapping[str, Any]) -> None:
    event_type, run_id = row["event_type"], row["run"]
    kind = "tool" if event_type.startswith("tool_call_") else "step"
    if kind == "step" and not payload.get("attempt"):
        return  # only reported as a step, as calls of models are; or no step at all
    name = payload["tool_name"] if kind == "tool" else payload["name"]
    key = kind, run_id, payload["tool_call_id"] if kind == "tool" else name
    if event_type in ("tool_call_started", "step_started"):
        given = one_form(payload.get("args_json" if kind == "tool" else "input_json"))
        known = pieces.get(key)
        pieces[key] = Piece(kind, name, given) if known is None else known._replace(state="running")
    elif event_type in _ENDS and key in pieces:
        known, error = pieces[key], payload.get("error")
        is_failed = error is not None or payload.get("outcome") == "failed"
        output = payload.get("result_json" if kind == "tool" else "output_json")
        pieces[key] = known._replace(
            state="failed" if is_failed else "succeeded",
            result=error["code"] if error else one_form(output),
            failures=known.failures + is_failed,
        )


def one_form(text: str | None) -> str | None:
    """Return JSON in one form, in which equal values are equal texts; other text as it is."""
    if text is None:
        return None
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except ValueError:
        return text


def _score_of(result: str | None) -> float | None:
    try:
        value = json.loads(result or "null")
    except ValueError:
        return None
    score = value.get("score") if isinstance(value, dict) else None
    return float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None


def compare_traces(first: Sequence[Piece], second: Sequence[Piece]) -> Comparison:
    """Return two traces side by side.

    Their common beginning is paired as it is; of the rest, `ALIGNED_MAX` pieces of each are aligned
    so that as many names as possible agree.
    """
    begin = _first_difference(first, second, "name")
    ones, others = first[begin : begin + ALIGNED_MAX], second[begin : begin + ALIGNED_MAX]
    pairs = [*map(_pair, first[:begin], second[:begin]), *_align(ones, others)]
    is_cut = max(len(first), len(second)) > begin + ALIGNED_MAX
    return Comparison(tuple(pairs), {level: _divergence(first, second, level) for level in LEVELS}, is_cut)


def _align(ones: Sequence[Piece], others: Sequence[Piece]) -> Iterator[Pair]:
    """Yield the pairs by a longest common subsequence of the names."""
    numbers: dict[tuple[str | None, ...], int] = {}  # compared faster than names
    names, other_names = (
        [numbers.setdefault(piece.key("name"), len(numbers)) for piece in part] for part in (ones, others)
    )
    # By place in both: the most pairs that agree from there on.
    most = [[0] * (len(others) + 1) for _ in range(len(ones) + 1)]
    for n in range(len(ones) - 1, -1, -1):
        name, here, below = names[n], most[n], most[n + 1]
        for m in range(len(others) - 1, -1, -1):
            here[m] = below[m + 1] + 1 if name == other_names[m] else max(below[m], here[m + 1])
    n = m = 0
    while n < len(ones) and m < len(others):
        if names[n] == other_names[m]:
            yield _pair(ones[n], others[m])
            n, m = n + 1, m + 1
        elif most[n + 1][m] >= most[n][m + 1]:
            yield Pair(ones[n], None, "")
            n += 1
        else:
            yield Pair(None, others[m], "")
            m += 1
    yield from (Pair(each, None, "") for each in ones[n:])
    yield from (Pair(None, each, "") for each in others[m:])


def _pair(first: Piece, second: Piece) -> Pair:
    agreed = [level for level in LEVELS if first.key(level) == second.key(level)]
    return Pair(first, second, agreed[-1])


def _first_difference(first: Sequence[Piece], second: Sequence[Piece], level: str) -> int:
    """Return the place of the first pieces that differ, or the length of the shorter trace."""
    places = range(min(len(first), len(second)))
    return next((n for n in places if first[n].key(level) != second[n].key(level)), len(places))


def _divergence(first: Sequence[Piece], second: Sequence[Piece], level: str) -> Divergence | None:
    place = _first_difference(first, second, level)
    if place == len(first) == len(second):
        return None
    one, other = (each[place] if place < len(each) else None for each in (first, second))
    return Divergence(place + 1, one, other)
