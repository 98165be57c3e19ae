"""The implementation of `SessionClient` and `AsyncSessionClient`, which hold only a core.

    core           the parts that a process has once, also after a fork; clients of other tenants
    sessions       opens, attaches, claims and creates sessions; the start of a client
    origin         the content of another session's snapshot, with which a new one starts
    opening        where an id of the caller's own leads, and who of several creators has it
    task_reads     the questions about tasks

The part of `AsyncSessionClient` that is written by hand is in `async_client_parts`.
"""
