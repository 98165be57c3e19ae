"""The local ClickHouse endpoint, in the order in which a request passes its modules.

    endpoint          the endpoint as a role and as a child process
    http_server       ClickHouse's HTTP interface in front of the engine
    request_bodies    pure: decompresses request bodies (lz4, gzip, zstd, deflate)
    sql               pure: what a statement is, and whether this engine may run it
    engine            the ClickHouse engine (chdb) over a folder

The endpoint listens on loopback only, asks for a password, and refuses web pages of other sites.
"""
