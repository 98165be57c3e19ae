"""Logs and traces of the server roles. The roles' extras bring the dependencies.

A client imports the names of a line's fields, and the names of spans if it is to make them.

    log_fields      the names of the fields that identify a line's subject
    role_logs       the lines that a role writes about itself: as JSON, or as text for people
    role_traces     the tracer of a role, and the names of spans and their attributes
    trace_context   the trace context in a record's header
"""
