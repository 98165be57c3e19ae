"""Gravestones: a hash of the key remains, in chunks of those that vanish together.

    chunk_index   the chunks of a partition, and the look-up of a key in them
    packing       which gravestones become a chunk, and which chunks become one

A gravestone is a row of its own at first. Once some hundreds wait, they become a chunk: a row under
a key that no client's record can have. So a chunk is written, counted and recovered as any row.
Vanished runs leave gravestones too; of a task a second hash is packed, by which its id is found.
"""
