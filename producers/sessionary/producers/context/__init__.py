"""Which session runs the current code, and what its events say of the work that they belong to.

Knows sessions and clients by what they need only; `session` and the clients are above it:

    scope                 the current session and its marks, in one context variable
    marks                 envelope fields that verbs take, and those that a block adds
    traceparent           the trace context of the current OpenTelemetry span
    thread_inheritance    lets plain threads and thread pools inherit the current session
    call_events           a call as events: its start, its end, its duration, its error
    reported_block        a `with` block whose start and end are reported
    model_call            `session.llm`: one call of a model
    run_beats             heartbeats of an attached run while it is silent
    traced_calls          `traced`: a decorator that reports each call of a function
    error_info            exceptions as events carry them
    failure_class         which failures may pass by themselves
"""
