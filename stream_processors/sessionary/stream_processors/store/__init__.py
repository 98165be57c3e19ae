"""Where rows live between transactions.

A store is a cache of the changelog, never ahead of it:

    cached_rows     rows as a state works on them, the ones used last decoded
    compact_rows    keys and rows as stores keep them, shorter than in the changelog
    full_disk       the room on the disk, and errors of a full one
    packed_rows     rows as bytes
    rocks_memory    the memory that all databases of a process share
    row_sum         number and checksum of the rows
    saved_position  up to where a store holds its changelog
    shelves         where a store's rows are: a dict, or a database
    stores          a partition's store, in memory or in RocksDB; the stores of a process
"""
