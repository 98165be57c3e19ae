"""The children of sessions and runs: each family is one module, from its transitions to its rows.

    step           steps of a run
    call           reserved tool calls of a run or a session
    artifact       artifacts of a run or a session
    message        the turns of a session's conversation
    agent          a session's agents
    checkpoint     checkpoints with data of a run or a session, and a session's snapshots

`core.family` has the common parts. A new family is a module here, and one line in `families`.
"""
