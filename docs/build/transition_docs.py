"""Draws what the documents take from the table of transitions.

ARCHITECTURE.md     the state diagram, between its marks
docs/transitions.md the tables of all transitions, of sessions and of what belongs to them
"""

from collections.abc import Iterable
from pathlib import Path

from docs.build.marked_text import replace_marked
from docs.build.transition_diagram import (
    artifact_table,
    call_table,
    run_table,
    state_diagram,
    step_table,
    transition_table,
)
from sessionary.schemas.limits import (
    AGENTS_MAX,
    CHECKPOINT_CHARACTERS_MAX,
    CHECKPOINTS_KEPT,
    CONVERSATION_TURNS_MAX,
    MESSAGE_CHARACTERS_MAX,
    RESULT_CHARACTERS_MAX,
    STATE_LEVELS_MAX,
    TRANSACTION_MS,
    TRANSACTIONS_MAX,
)
from sessionary.stream_processors.core.session.migration import HELD, LET_GO, TAKEN
from sessionary.stream_processors.core.session.transitions import CONTENT_CHANGES

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
TABLE = ROOT / "docs" / "transitions.md"
_HEAD = """# Transitions of a session

This table lists every transition of the session machine, from `TRANSITIONS` in
`stream_processors/core/session/transitions.py`. `make docs` writes this page. Events that are
accepted without a transition are in `ACCEPTED`, in the same module; any other event is rejected.

If the rules have quotas of sessions, T02 is rejected as `quota_exceeded` until the tenant's quota
admits the session, and a rejection is T03 with the same reason. The clock `initialisation` runs
from the admission; `quota_wait` and `quota_silence` run until then.

A turn, one exchange with the user, begins and ends without a transition: an event
`session_phase_changed` moves an Active session to the phase `processing`, and at the end to
`waiting`. While a process is in a turn, another one's begin and end are rejected as `phase_order`;
a take-over, and another process's `resume` or `recover`, end the turn. A turn may end in a pause,
too. In the phase `waiting` only the clock `user_idle` runs. A pause, and a migration, of a session
that waits keep the phase.

"""


_MIGRATIONS = """
## Transitions by a migration

The source is `core/session/migration.py`. A session in Active, Paused or Timeout may be offered to
another service (`session_migration_offered`, by its owner or an operator). Once the target has
loaded the session (`session_migration_loaded`), an Active session is held; a session in Paused or
Timeout stays there. If the target accepts the session's version and hash
(`session_migration_accepted`), it owns the session, at the next epoch: a held session is Active
again, a session in Timeout is resumed, a session in Paused stays Paused. A migration is aborted by
its owner, its target or an operator (`session_migration_aborted`), when its time is over, if the
target had another state three times, by a take-over, and by the session's end. A session held by an
aborted migration is Active again, at the same epoch. During a migration `session_resumed` is
rejected as `migration_open`. Each step is an audit record of the kind `migration`.

"""


_RUNS = """
## Transitions of a run

The source is `RUN_TRANSITIONS` in `stream_processors/core/run/transitions.py`. `plan_recorded`
(only without a plan), `plan_replaced` (only with a plan), `checkpoint_saved` (the run keeps the
last one), and any other work or completion that names an open run, do not change its state. Any
other event that names a run is rejected, except the outcome of a reserved tool call, and the end of
an artifact: these are accepted for a finished run too. R15 and R16 are the effects of an unknown
call with a side effect on its run; R12's reason is `connection_lost` if the session's agent was
silent, else `session_timed_out`. R07 and R11 are rejected as `call_unresolved` while there is such
a call. If the rules have quotas, R17 and R18 replace R01, R02 and R11: the run waits until its
tenant's quota decides (R19 to R23), and until then R04 is rejected as `quota_exceeded`.

"""

_STEPS = """
## Transitions of a step

The source is `STEP_TRANSITIONS` in `stream_processors/core/step/transitions.py`, for events that
name a run. Attempts are numbered from 1; events of attempt 0 are work that is only reported, as by
`session.llm` and `traced`. `step_started` needs a run that is started or running. P07: an attempt
whose event has a time limit (`limit_ms`) fails after this time, with a retryable error
`model_limit`; the session continues, and later reports of the attempt's caller are rejected. A
`step_skipped` of a step that succeeded or was skipped changes nothing; any other pair is rejected.

"""

_CALLS = """
## Transitions of a reserved tool call

The source is `CALL_TRANSITIONS` in `stream_processors/core/call/transitions.py`. A call is reserved
if its `idem_key` is not empty and differs from its `tool_call_id`; any other call is work.
Tries are numbered from 1. A `tool_call_started` is rejected as `call_in_progress` while the call
runs, as `call_succeeded` after it succeeded, and as `call_unresolved` if it is unknown and may have
had a side effect. Any other pair is rejected.

"""


_ARTIFACTS = """
## Transitions of an artifact

The source is `ARTIFACT_TRANSITIONS` in `stream_processors/core/artifact/transitions.py`. An
artifact belongs to the run that its events name, or else to the session. A chunk begins at the
artifact's present size or below; then the artifact has `offset` + `length` bytes. `sha256` has 64
digits, and after chunks, `size_bytes` is their size. An `artifact_created` or `artifact_completed`
with the same values as the first one changes nothing; one with other values is rejected as
`invalid_value`. An event of an artifact that was not created is rejected as `unknown_artifact`, any
other pair as `illegal_transition`.

"""

_MESSAGES = f"""
## Turns of a conversation

Each applied `message_appended` is a turn of its session. The judge numbers the turns from 1, in the
order of the log. The last {CONVERSATION_TURNS_MAX} turns have a row each: a later turn reuses the oldest turn's row.
A content of more than {MESSAGE_CHARACTERS_MAX:,} characters is rejected as `invalid_value`; longer contents
are sent as artifacts. A replayed message that fills its gap is the next turn.
"""


_POINTS = f"""
## Checkpoints, rollback and transactions

A `checkpoint_saved` with `data_json` has a row for each operation of its run, or of its session:
it holds the last {CHECKPOINTS_KEPT}, fewer if their data exceed {CHECKPOINT_CHARACTERS_MAX:,} characters. The
contents of the last snapshots (`snapshot_created`) are kept in the same way. `session_rolled_back`
makes the content of one of these, or of the head of the chain, the next version. For another
snapshot of the session it brings the content in `state_json`. Any other target is rejected as
`unknown_snapshot`.

A content, and the state of a snapshot, is a JSON object: any other text, or one that is nested more
than {STATE_LEVELS_MAX} levels deep, is rejected as `invalid_value`. The end of a session applies without
such a snapshot.

| event | the transaction is | after it | rejected as |
|---|---|---|---|
| `txn_begun` | not open | open, in the session's row | `invalid_value`, `too_many_transactions` |
| `txn_committed` | open | ended; its content is the next version | `unknown_transaction`, `version_conflict` |
| `txn_rolled_back` | open | ended | `unknown_transaction` |

A session has at most {TRANSACTIONS_MAX} open transactions. They are rolled back with the end of their session
(`session_ended`). One that began {TRANSACTION_MS // 60_000} minutes ago counts no longer, and is rolled back
(`expired`) with the next event of a transaction. Each step is an audit record of the kind
`transaction`, a rollback one of the kind `rollback`. These events are possible in Active, and
change no state.

"""


_AGENTS = f"""
## Agents of a session

`agent_registered` makes the named agent (by default the sender) a member of the session, and its
service too. Only the owning service may send the event, or the control API for an operator
(`as_operator`); any other sender is `not_member`. A session has at most {AGENTS_MAX} agents
(`too_many_agents`). A repetition with the same values changes nothing; another role or service is
`invalid_value`.

Only members change the content:

{"".join(f"- `{name}`{chr(10)}" for name in sorted(CONTENT_CHANGES))}
Any service may send the `checkpoint_saved` of a detached run. All other work stays open to the
tenant's services.

| `agent_task_updated` | current task | completed tasks |
|---|---|---|
| a task, not `completed` | this task | the former current task, if it is another |
| a task, `completed` | none, if it was this task | also this task |
| no task | the event refers to the current task | |

Each task of an agent is done once: an event that begins or completes it again is `task_done`. Each
applied event makes a snapshot of the agent's state: `to_snapshot_id`, or else `snap_` and the
first 12 digits of the SHA-256 of the event's id. A
given `from_snapshot_id` must be the agent's last snapshot (`broken_chain`). A result of at most
{RESULT_CHARACTERS_MAX:,} characters is shared under `shared_key`, by default the agent's id, `_` and the task.
`context_synced` notes the giver's snapshot in the taker's row. Both events may come from the
agent's own service (for a hand-over: the giver's) and from the owning service (else `not_member`),
and are rejected as `unknown_agent` if an agent is not registered.

The roles in the session's row decide which results an agent sees:

| role | sees the results of | depends on |
|---|---|---|
| `researcher` | no agent | none |
| `analyzer` | researchers | all researchers |
| `writer` | all agents | all other agents |
| any other | all agents | none |

"""


def with_diagram(text: str) -> str:
    """Return `text` with today's diagram between the marks.

    Raises ValueError unless each mark is there once.
    """
    return replace_marked(text, "state diagram", state_diagram())


def transitions_page() -> str:
    """Return the page of all transitions."""
    parts = (
        *(
            _HEAD,
            transition_table(),
            _MIGRATIONS,
            transition_table((HELD, *TAKEN.values(), LET_GO)),
            _RUNS,
            run_table(),
            _STEPS,
            step_table(),
        ),
        *(_CALLS, call_table(), _ARTIFACTS, artifact_table(), _MESSAGES, _POINTS, _AGENTS),
    )
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


def write() -> Iterable[Path]:
    """Bring both files up to date. Returns their paths. Raises ValueError if a mark is missing."""
    ARCHITECTURE.write_text(with_diagram(ARCHITECTURE.read_text("utf-8")), "utf-8")
    TABLE.write_text(transitions_page(), "utf-8")
    return ARCHITECTURE, TABLE
