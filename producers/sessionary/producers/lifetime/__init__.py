"""A client from its opening to its end, in its process and in forked children.

One module:

    bound_client    the parts that are made once per process, and how they end
"""
