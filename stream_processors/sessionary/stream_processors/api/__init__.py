"""The control API: committed state, the worker's health and operators' commands, over HTTP.

In the order in which a request passes:

    pages             adds the pages to Faust's web server; every error is a problem document
    connections       closes connections that are slow, or too many
    tokens            which bearer tokens are known, and which caller each one stands for
    session_questions  requests about one session: who asks, which partition answers
    sessions          a session's committed state, and the worker's health
    session_document  the JSON document of a session
    runs              the runs of a session, their steps, tool calls and artifacts; tasks
    conversations     the last turns of a session's conversation
    agents            the agents of a session, and what each sees
    following         streams that tell each committed change of a session
    lists             the runs and sessions of a tenant, over all partitions
    session_poll      which of many sessions differ from what a client knows of them
    verdicts          what became of the record that a request waits for
    operators         the operators' pages: partitions and rules
    routing           the other workers: requests that belong to them, and what they know
    problems          answers: JSON documents, and errors as problem documents
    unknown_ids       what is kept of callers who ask for what their tenant does not have
    openapi_parts     the parts of the OpenAPI document
    openapi           the API's OpenAPI document
"""
