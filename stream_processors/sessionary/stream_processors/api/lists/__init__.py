"""The control API's lists over all partitions: the runs and the sessions of a tenant.

    list_pages    the pages: who asks, for what, and which workers answer
    scan          one partition's part of a list, read in small slices
    list_part     parts of a list, and how they are merged; pure
    openapi       the pages' part of the OpenAPI document

A partition that does not answer is named in the list; the rest of it is there.
"""
