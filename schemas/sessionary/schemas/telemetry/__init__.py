"""What the server roles share to be observed. Their extras bring what it needs.

A client imports only what is about spans, and only if it is asked to make them.

    role_logs       the lines that a role writes about itself: as JSON, or as text for people
    repeat_limiter  which of many repeated lines are written; pure
    role_traces     the tracer of a role, which the SDK's own variables configure
    span_names      the names of spans and their attributes
    trace_context   the trace context in a record's header
"""
