"""The local ClickHouse endpoint, in the order in which a request passes its modules.

    http_server       serves the engine over HTTP, as a child process
    sql               pure: the statements of requests, and their bodies
    engine            the ClickHouse engine (chdb) over a folder
    endpoint          the endpoint as a role and as a child process

The endpoint listens on loopback only, asks for a password, and refuses web pages of other sites.
"""
