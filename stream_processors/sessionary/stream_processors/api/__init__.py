"""The control API: committed state, the worker's health and operators' commands, over HTTP.

In the order in which a request passes:

    pages             adds the pages to Faust's web server; every error is a problem document
    connections       closes connections that are slow, or too many
    tokens            which bearer tokens are known, and which caller each one stands for
    sessions          a session's committed state, and the worker's health
    session_poll      which of many sessions differ from what a client knows of them
    verdicts          what became of the record that a request waits for
    partitions        the operators' pages: partitions' states, a new start for a halted one
    rules             the operators' pages of the rules: those in force, and newer ones' activation
    worker_facts      what a worker tells of itself: release, clock, disk
    routing           the other workers: requests that belong to them, and what they know
    problems          answers: JSON documents, and errors as problem documents
    openapi           the API's OpenAPI document
"""
