"""The control API: committed state, the worker's health and operators' commands, over HTTP.

In the order in which a request passes:

    pages             adds the pages to Faust's web server; every error is a problem document
    session_questions  asks the owner of a session, and writes its state as a document
    sessions          a session's committed state, and the worker's health
    session_poll      which of many sessions differ from a client's knowledge
    operators         the operators' pages: partitions and rules
    routing           the other workers: requests for them, and their answers
    problems          answers: JSON documents, and errors as problem documents
    openapi_parts     the parts of the OpenAPI document
    openapi           the API's OpenAPI document
    openapi_runs      the part of the document about runs and lists
    lists             pages that list sessions, runs and questions over all partitions
    runs              pages of runs, steps, tool calls, artifacts and tasks
    following         streams of the committed states of a session
    tokens            the caller of a request's bearer token
    past              the page of a session's state at a point of its history
    session_pages     pages of a session's agents, and of the turns of its conversation
"""
