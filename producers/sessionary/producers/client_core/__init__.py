"""The inside of `SessionClient` and `AsyncSessionClient`, which hold nothing but a core.

    core           what a process has once; its parts in a fork; clients of other tenants
    sessions       opens, attaches, claims and creates sessions; what a client begins with
    task_reads     the questions about tasks

The part of `AsyncSessionClient` that is written by hand is in `async_client_parts`.
"""
