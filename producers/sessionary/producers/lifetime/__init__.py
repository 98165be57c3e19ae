"""A client from its opening to its end, in its process and in forked children.

Each adds to the one before; `SessionClient` adds the verbs:

    task_answers      what a client is told of a task: its status, its result
    bound_client      the parts that are made once per process, and how they end
    migration_verbs   `accept_migrations` and `claim`: sessions that come from others
    tenant_clients    `for_tenant`: clients of several tenants over one producer
    task_questions    the questions about tasks, by their id alone
    follow_questions  what a client does to follow a session
    conversation_questions  the question about the conversation of a session
    async_questions   these for asyncio
    async_migration_verbs   `accept_migrations` and `claim` for asyncio
    library_place     the client's library of artifacts, by the place that a user names
"""
