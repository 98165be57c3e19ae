"""The session that runs the current code, and the fields of its events about their work.

Uses sessions and clients by protocols only; `session` and the clients are above this package:

    scope           the scope of the current code, which threads inherit, and its envelope fields
    reported_block  a block that is reported to its session, and the events of calls
    model_call      `session.llm`: one call of a model
    run_beats       heartbeats of an attached run while it is silent
    traced_calls    `traced`: a decorator that reports each call of a function
    captured_call   arguments and results that `traced(capture=True)` keeps
    callables       the name and the kind of a decorated callable
    call_counts     the numbers of equal calls in one attempt
    error_info      an exception as an event has it, and how a block ends that it leaves
    failure_class   what a failure says: not sent, unknown or refused, and how long to wait
"""
