"""What the server roles share to be observed. Their extras bring what it needs.

A client imports the names of a line's fields, and what is about spans if it is to make them.

    log_fields      the names of the fields that say what a line is about
    role_logs       the lines that a role writes about itself: as JSON, or as text for people
    role_traces     the tracer of a role, and the names of spans and their attributes
    trace_context   the trace context in a record's header
"""
