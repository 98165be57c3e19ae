"""The control API: a session's committed state and the worker's health, over HTTP.

It only reads:

    authentication    which caller a token stands for
    sessions          answers requests, or passes them on to the partition's owner
    openapi           the API's OpenAPI document
"""
