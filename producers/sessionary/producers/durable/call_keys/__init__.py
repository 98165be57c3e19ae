"""Idempotency keys of tool calls.

    keys             keys of calls, and those of the business
    canonical_json   JSON with one form for each value: RFC 8785

Both are pure.
"""
