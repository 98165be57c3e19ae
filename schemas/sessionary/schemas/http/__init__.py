"""Requests to the control API, as clients and commands send them.

    control_servers     the servers of a setting; if one is away, the next one is asked
    kept_connections    the connections to one server, which stay open between requests
    proxies             proxies of the environment, and what is asked without them

No module here knows a role.
"""
