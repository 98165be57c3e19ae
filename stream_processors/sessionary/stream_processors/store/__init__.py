"""Where rows live between transactions.

A store is a cache of the changelog, never ahead of it:

    cached_rows     rows as a state works on them, the ones used last decoded
    packed_rows     rows as bytes
    shelves         rows on shelves, packed with their neighbours
    stores          a partition's store, in memory or in RocksDB; the stores of a process
"""
