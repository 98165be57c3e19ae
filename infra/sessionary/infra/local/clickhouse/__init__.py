"""The local ClickHouse endpoint, in the order in which a request passes its modules.

    http_server       serves the engine over HTTP, as a child process
    request_bodies    pure: decompresses request bodies (lz4, gzip, zstd, deflate)
    sql               pure: what a statement is, and whether this engine may run it
    engine            the ClickHouse engine (chdb) over a folder

The endpoint listens on loopback only, asks for a password, and refuses web pages of other sites.
"""
