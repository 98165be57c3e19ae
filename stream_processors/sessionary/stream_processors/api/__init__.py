"""The control API: a session's committed state and the worker's health, over HTTP.

It only reads:

    pages             adds the pages to Faust's web server; every error is a problem document
    authentication    which caller a token stands for
    token_store       the tokens in force: of the settings and of a file that may change
    sessions          answers requests, or passes them on to the partition's owner
    problems          answers: JSON documents, and errors as problem documents
    openapi           the API's OpenAPI document
"""
