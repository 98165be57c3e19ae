"""The inside of `SessionClient` and `AsyncSessionClient`, which hold nothing but a core.

    opening        opens a client by the names and settings that a user gives
    core           what a process has once; its parts in a fork; clients of other tenants
    sessions       makes sessions, attaches to those that exist, follows and reads any
    task_reads     the questions about tasks

The part of `AsyncSessionClient` that is written by hand is in `async_client_parts`.
"""
