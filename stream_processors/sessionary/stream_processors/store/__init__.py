"""Where rows live between transactions.

A store is a cache of the changelog, never ahead of it:

    full_disk      the room on the disk, and errors of a full one
    packed_rows    rows as bytes, the ones used last decoded too
    rocks_memory   the memory that all databases of a process share
    row_sum        number and checksum of the rows
    stores         a partition's store, in memory or in RocksDB; the stores of a process
"""
