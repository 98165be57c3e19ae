"""A client from its opening to its end, in its process and in forked children.

Each adds to the one before; `SessionClient` adds the verbs:

    bound_client      the parts that are made once per process, and how they end
    tenant_clients    `for_tenant`: clients of several tenants over one producer
"""
