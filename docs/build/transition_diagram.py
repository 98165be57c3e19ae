"""The transitions as documents show them: a state diagram (Mermaid) and a Markdown table."""

from collections.abc import Sequence

from sessionary.stream_processors.core.children.artifact import ARTIFACT_TRANSITIONS, ArtifactTransition
from sessionary.stream_processors.core.children.call import CALL_TRANSITIONS, CallTransition
from sessionary.stream_processors.core.children.step import STEP_TRANSITIONS, StepTransition
from sessionary.stream_processors.core.run.transitions import RUN_TRANSITIONS, RunTransition
from sessionary.stream_processors.core.session.transitions import TRANSITIONS, Transition


def state_diagram(transitions: Sequence[Transition] = TRANSITIONS) -> str:
    """Return the diagram as a fenced Mermaid block, without a line end."""
    arrows = [_draw_arrow(transition) for transition in transitions]
    last = [f"    {state} --> [*]" for state in _final_states(transitions)]
    return "\n".join(["```mermaid", "stateDiagram-v2", *arrows, *last, "```"])


def transition_table(transitions: Sequence[Transition] = TRANSITIONS) -> str:
    """Return a Markdown table of every transition, without a line end at its end."""
    head = ["| | from | event | to | sent by | reasons | clocks that fire it | clean-up |", "|---" * 8 + "|"]
    return "\n".join([*head, *map(_table_row, transitions)])


def run_table(transitions: Sequence[RunTransition] = RUN_TRANSITIONS) -> str:
    """Return a Markdown table of every transition of a run, without a line end at its end."""
    head = ["| | from | event | to | by |", "|---" * 5 + "|"]
    return "\n".join([*head, *map(_run_row, transitions)])


def _run_row(transition: RunTransition) -> str:
    sources = ", ".join(source or "-" for source in transition.sources)
    by = {
        "client": "client",
        "session": "its session",
        "clock": "its clock",
        "call": "its calls",
        "quota": "its quota",
    }[transition.by]
    return f"| {transition.id} | {sources} | `{transition.event_type}` | {transition.target or '-'} | {by} |"


def step_table(transitions: Sequence[StepTransition] = STEP_TRANSITIONS) -> str:
    """Return a Markdown table of every transition of a step, without a line end at its end."""
    head = ["| | from | event | to | by |", "|---" * 5 + "|"]
    return "\n".join([*head, *map(_step_row, transitions)])


def _step_row(transition: StepTransition) -> str:
    source, by = transition.source or "-", "its clock" if transition.by == "clock" else "client"
    return f"| {transition.id} | {source} | `{transition.event_type}` | {transition.target} | {by} |"


def call_table(transitions: Sequence[CallTransition] = CALL_TRANSITIONS) -> str:
    """Return a Markdown table of every transition of a tool call, without a line end at its end."""
    head = ["| | from | event | to | by |", "|---" * 5 + "|"]
    return "\n".join([*head, *map(_call_row, transitions)])


def _call_row(transition: CallTransition) -> str:
    events = ", ".join(f"`{name}`" for name in transition.targets)
    targets = ", ".join(dict.fromkeys(target for targets in transition.targets.values() for target in targets))
    by = "its clock" if transition.by == "clock" else "client"
    return f"| {transition.id} | {transition.source or '-'} | {events} | {targets} | {by} |"


def artifact_table(transitions: Sequence[ArtifactTransition] = ARTIFACT_TRANSITIONS) -> str:
    """Return a Markdown table of every transition of an artifact, without a line end at its end."""
    head = ["| | from | event | to |", "|---" * 4 + "|"]
    return "\n".join([*head, *map(_artifact_row, transitions)])


def _artifact_row(transition: ArtifactTransition) -> str:
    sources = ", ".join(source or "-" for source in transition.sources)
    return f"| {transition.id} | {sources} | `{transition.event_type}` | {transition.target} |"


def _draw_arrow(transition: Transition) -> str:
    how = {
        "client": ", ".join(transition.reasons),
        "operator": "by an operator",
        "processor": "by a clock",
        "either": ", ".join((*transition.reasons, "or by a clock")),
    }[transition.by]
    label = f"{transition.id} {transition.event_type}" + (f" ({how})" if how else "")
    return f"    {transition.source or '[*]'} --> {transition.target}: {label}"


def _table_row(transition: Transition) -> str:
    phase = f" ({transition.phase})" if transition.phase else ""
    cells = (
        transition.id,
        transition.source or "-",
        f"`{transition.event_type}`",
        f"{transition.target}{phase}",
        "client or processor" if transition.by == "either" else transition.by,
        ", ".join(transition.reasons) or "-",
        ", ".join(f"{clock.name} (`{clock.reason_code}`)" for clock in transition.clocks) or "-",
        "; ".join(_list_cleanups(transition)) or "-",
    )
    return f"| {' | '.join(cells)} |"


def _list_cleanups(transition: Transition) -> list[str]:
    plan = transition.cleanup
    always = [", ".join(plan.actions)] if plan.actions else []
    return always + [f"after `{reason}`: {', '.join(actions)}" for reason, actions in plan.by_reason.items()]


def _final_states(transitions: Sequence[Transition]) -> list[str]:
    sources = {transition.source for transition in transitions}
    return sorted({transition.target for transition in transitions} - sources)
