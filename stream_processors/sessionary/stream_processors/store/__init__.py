"""Where rows live between transactions.

A store is a cache of the changelog, never ahead of it:

    cached_rows     rows as a state works on them, the ones used last decoded
    compact_rows    keys and rows as stores keep them, shorter than in the changelog
    packed_rows     rows as bytes
    row_sum         number and checksum of the rows
    shelves         where a store's rows are: a dict, or a database
    stores          a partition's store, in memory or in RocksDB; the stores of a process
"""
