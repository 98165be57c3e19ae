"""The control API: a session's committed state and the worker's health, over HTTP.

It only reads:

    sessions    answers requests, or passes them on to the partition's owner
    verdicts    what became of the record that a request waits for
    openapi     the API's OpenAPI document
"""
