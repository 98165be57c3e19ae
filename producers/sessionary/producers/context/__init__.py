"""Which session runs the current code, and what its events say of the work that they belong to.

Knows sessions and clients by what they need only; `session` and the clients are above it:

    scope                 what the current code runs in; threads inherit it
    event_metadata        envelope fields that verbs take, and those that a block adds
    reported_block        a block that is reported to its session, and the events of calls
    model_call            `session.llm`: one call of a model
    run_beats             heartbeats of an attached run while it is silent
    traced_calls          `traced`: a decorator that reports each call of a function
    error_info            an exception as an event has it, and whether a retry helps
"""
